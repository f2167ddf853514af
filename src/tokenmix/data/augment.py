"""The gMLP paper's image recipe (its Table 7) on a batch, by kornia: AutoAugment, mixup or cutmix, label smoothing.

    augment = Augment(classes=1000)                       # mixup 0.8, cutmix 1.0, switch 0.5, smoothing 0.1
    images, targets = augment(images, labels)             # [B, 3, H, W] in [0, 1] and [B] → targets [B, classes]

Soft targets sum to 1, and before smoothing a class's share is its share of the pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _kornia() -> Any:
    try:
        import kornia.augmentation
        import kornia.augmentation.auto
    except ImportError as error:
        raise ImportError("image augmentation uses kornia: pip install 'tokenmix[vision]'") from error
    return kornia.augmentation


def soft_targets(labels: Tensor, partners: Tensor, share: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """[B, classes]: 1 − share for the own label, share for the partner's, spread by label smoothing.

    >>> soft_targets(torch.tensor([0]), torch.tensor([1]), torch.tensor([0.25]), classes=2)
    tensor([[0.7500, 0.2500]])
    """
    own, other = (nn.functional.one_hot(x.long(), classes).to(share.dtype) for x in (labels, partners))
    mixed = own * (1 - share[:, None]) + other * share[:, None]
    return mixed * (1 - smoothing) + smoothing / classes


class Augment(nn.Module):
    """Augments a batch in training mode; in evaluation mode images pass unchanged and targets are one-hot.

    policy     AutoAugment's "imagenet", "cifar10" or "svhn", drawn anew for every image; None leaves it out
    mixup      α of the Beta distribution of mixup's λ, one a batch; 0 turns it off
    cutmix     the same for cutmix; the share of a label is the cut's true area
    switch     how often cutmix is taken where both are on
    """

    def __init__(
        self,
        classes: int,
        policy: str | None = "imagenet",
        mixup: float = 0.8,
        cutmix: float = 1.0,
        switch: float = 0.5,
        smoothing: float = 0.1,
    ):
        super().__init__()
        for name, value, high in (
            ("mixup", mixup, 1e9),
            ("cutmix", cutmix, 1e9),
            ("switch", switch, 1),
            ("smoothing", smoothing, 1),
        ):
            if not 0 <= value <= high:
                raise ValueError(f"{name}={value}: expected a number from 0 to {high:g}")
        self.classes, self.smoothing = classes, smoothing
        self.mixup, self.cutmix = mixup, cutmix
        self.switch = switch if mixup and cutmix else float(bool(cutmix))
        kornia = _kornia()
        self._auto = kornia.auto.AutoAugment(policy) if policy else None
        # λ is passed in for mixup: kornia itself would draw it uniformly
        self._mixup = kornia.RandomMixUpV2(data_keys=["input", "class"])
        self._cutmix = kornia.RandomCutMixV2(
            beta=cutmix or 1.0, data_keys=["input", "class"], same_on_batch=True, use_correct_lambda=True
        )

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if images.ndim != 4 or not images.is_floating_point():
            given = f"{tuple(images.shape)}, {images.dtype}"
            raise ValueError(f"images of shape {given}: expected floats [batch, channels, height, width] in [0, 1]")
        if labels.shape != images.shape[:1]:
            raise ValueError(f"labels of shape {tuple(labels.shape)} for {len(images)} images: expected one class each")
        if not self.training:
            nothing = torch.zeros(len(labels), device=images.device)
            return images, soft_targets(labels, labels, nothing, self.classes)
        if self._auto is not None:
            # one call an image: kornia draws one policy for all that it is given
            images = torch.cat([self._auto(image[None]) for image in images]).clamp(0, 1)
        if self.mixup or self.cutmix:
            images, labels, partners, share = self._mix(images, labels)
        else:
            partners, share = labels, torch.zeros(len(labels), device=images.device)
        return images, soft_targets(labels, partners, share, self.classes, self.smoothing)

    def _mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(images, own labels, partners' labels, the partner's share of the pixels)."""
        if torch.rand(()) < self.switch:
            mixed, info = self._cutmix(images, labels)
            own, partner, kept = info[0].unbind(-1)  # [1, B, 3]; the third is the share that stays
            return mixed, own, partner, 1 - kept
        params = self._mixup.forward_parameters(images.shape)
        strength = torch.distributions.Beta(self.mixup, self.mixup).sample().to(params["mixup_lambdas"])
        params["mixup_lambdas"] = strength.expand(len(images)).clone()
        mixed, info = self._mixup(images, labels, params=params)
        own, partner, share = info.unbind(-1)  # [B, 3]; the third is the partner's share
        return mixed, own, partner, share
