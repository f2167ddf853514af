"""The gMLP recipe: soft targets sum to 1 and match the pixel share; every image has its own policy."""

from __future__ import annotations

import sys

import pytest
import torch

from tokenmix.data.augment import Augment, soft_targets

pytest.importorskip("kornia")
CLASSES = 8


def one_colour_each(size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Image i is 1 in channel i and 0 elsewhere, so that a channel's mean is its class's share of the pixels."""
    labels = torch.arange(CLASSES)
    return torch.eye(CLASSES)[:, :, None, None].expand(-1, -1, size, size).clone(), labels


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_targets_are_the_pixel_shares(mixup: float, cutmix: float) -> None:
    augment = Augment(CLASSES, policy=None, mixup=mixup, cutmix=cutmix, smoothing=0.0)
    strengths = set()
    for _ in range(40):
        images, targets = augment(*one_colour_each())
        torch.testing.assert_close(targets.sum(1), torch.ones(CLASSES))
        torch.testing.assert_close(images.mean((2, 3)), targets)
        strengths.add(round(float(targets.max()), 4))
    assert len(strengths) > 5


def test_smoothing_spreads_a_tenth() -> None:
    augment = Augment(CLASSES, policy=None, mixup=0, cutmix=0)
    images, targets = augment(*one_colour_each())
    assert torch.equal(images, one_colour_each()[0])
    torch.testing.assert_close(targets, torch.eye(CLASSES) * 0.9 + 0.1 / CLASSES)
    _, targets = Augment(CLASSES, policy=None)(*one_colour_each())
    torch.testing.assert_close(targets.sum(1), torch.ones(CLASSES))
    assert targets.min() >= 0.1 / CLASSES - 1e-6


def test_mixup_strength_follows_the_beta_distribution() -> None:
    """Beta(0.8, 0.8) has variance 1 / (4 · 2.6); kornia's own uniform draw would have 1/12."""
    augment = Augment(2, policy=None, mixup=0.8, cutmix=0, smoothing=0)
    pictures, labels = torch.zeros(2, 3, 2, 2), torch.tensor([0, 1])
    pictures[1] = 1
    strengths = []
    while len(strengths) < 1500:
        images, _ = augment(pictures, labels)
        if not torch.equal(images[0], images[1]) or float(images[0].mean()) == 0.5:
            strengths.append(float(images[0].mean()) if float(images[0].mean()) > 0 else None)
    drawn = torch.tensor([s for s in strengths if s is not None and 0 < s < 1])
    assert drawn.var() == pytest.approx(1 / (4 * 2.6), rel=0.12)


def test_switch_decides_between_mixup_and_cutmix() -> None:
    cut = 0
    augment = Augment(CLASSES, policy=None, switch=0.5)
    for _ in range(200):
        images, _ = augment(*one_colour_each(8))
        cut += bool(((images == 0) | (images == 1)).all())
    assert 70 < cut < 130


def test_every_image_draws_its_own_policy() -> None:
    picture = torch.rand(1, 3, 16, 16).expand(16, -1, -1, -1)
    augment = Augment(10, mixup=0, cutmix=0)
    images, _ = augment(picture, torch.zeros(16, dtype=torch.long))
    assert len({tuple(image.flatten().tolist()) for image in images}) > 4
    assert images.min() >= 0
    assert images.max() <= 1


def test_evaluation_changes_nothing() -> None:
    augment = Augment(CLASSES).eval()
    images, targets = augment(*one_colour_each())
    assert torch.equal(images, one_colour_each()[0])
    assert torch.equal(targets, torch.eye(CLASSES))


def test_same_seed_same_batch() -> None:
    augment = Augment(10)
    batch = torch.rand(4, 3, 16, 16), torch.arange(4)
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(augment(*batch))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_mistakes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"switch=2: expected a number from 0 to 1"):
        Augment(10, switch=2)
    with pytest.raises(ValueError, match=r"torch\.uint8: expected floats"):
        Augment(10)(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2))
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) for 2 images"):
        Augment(10)(torch.zeros(2, 3, 4, 4), torch.zeros(3))
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    with pytest.raises(ImportError, match=r"tokenmix\[vision\]"):
        Augment(10)


def test_soft_targets_of_equal_labels_add_up() -> None:
    same = torch.tensor([1])
    assert soft_targets(same, same, torch.tensor([0.3]), 2).tolist() == [[0.0, 1.0]]
