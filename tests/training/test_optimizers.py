"""Schedules and optimizers against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tokenmix.models import create_model
from tokenmix.training.config import OptimizerConfig, ScheduleConfig
from tokenmix.training.optimizers import Adafactor, build_optimizer, clip, decayed
from tokenmix.training.schedules import learning_rate


def rate(name: str, step: int, total: int = 1000, warmup: float = 100, lr: float = 2.0, **more: float) -> float:
    return learning_rate(ScheduleConfig(name=name, warmup=warmup, **more), lr, step, total)  # type: ignore[arg-type]


def test_schedules_follow_their_formulas() -> None:
    assert rate("linear", 49) == pytest.approx(2.0 * 50 / 100)
    assert rate("linear", 100) == pytest.approx(2.0)
    assert rate("linear", 550) == pytest.approx(2.0 * 0.5)
    assert rate("linear", 1000) == 0
    assert rate("cosine", 325) == pytest.approx(2.0 * (1 + math.cos(math.pi * 0.25)) / 2)
    assert rate("constant", 9) == pytest.approx(0.2)
    assert rate("constant", 999, warmup=0) == 2.0
    assert [rate("constant", step, warmup=0, decay=0.25) for step in (749, 750, 875)] == [2.0, 2.0, 1.0]
    assert rate("constant", 999, warmup=0, decay=0.25) == pytest.approx(2.0 / 250)
    assert rate("constant", 9, warmup=100, decay=1.0) == pytest.approx(0.2 * 0.991)  # it rises and falls at once
    assert rate("constant", 0, total=math.inf, warmup=0, decay=0.25) == 2.0  # minutes: not known yet
    assert rate("linear", 0, warmup=0.1) == pytest.approx(2.0 / 100)  # a share of the run


def test_a_decay_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        ScheduleConfig(name="constant", decay=100)
    with pytest.raises(ValueError, match="belongs to schedule"):
        ScheduleConfig(name="linear", decay=0.5)


def test_inverse_square_root_is_t5s_and_the_synthesizers() -> None:
    for step in (0, 10, 9_999, 10_000, 123_456):
        t5 = rate("inverse_sqrt", step, warmup=10_000, lr=1.0, ramp=False)
        assert t5 == pytest.approx(1 / math.sqrt(max(step + 1, 10_000)))
        classifier = rate("inverse_sqrt", step, warmup=8_000, lr=0.05)
        assert classifier == pytest.approx(0.05 * min(1, (step + 1) / 8000) / math.sqrt(max(step + 1, 8000)))


def adafactor_by_hand(weight: Tensor, gradients: list[Tensor], lr: float, factored: bool) -> Tensor:
    """Shazeer & Stern (2018), Algorithms 4 and 5, with β₁ = 0, d = 1, ε₁ = 1e-30, ε₂ = 1e-3."""
    weight = weight.double().clone()
    row = column = moment = torch.zeros(())
    for t, gradient in enumerate(gradients, 1):
        g = gradient.double()
        beta = 1 - t**-0.8
        alpha = max(1e-3, float(weight.square().mean().sqrt())) * lr
        squared = g.square() + 1e-30
        if factored:
            row = beta * row + (1 - beta) * squared.sum(-1)
            column = beta * column + (1 - beta) * squared.sum(-2)
            v = row[..., :, None] * column[..., None, :] / row.sum(-1)[..., None, None]
        else:
            moment = beta * moment + (1 - beta) * squared
            v = moment
        update = g / v.sqrt()
        update = update / max(1.0, float(update.square().mean().sqrt()))
        weight -= alpha * update
    return weight


@pytest.mark.parametrize(
    "shape, factored",
    [
        ((128, 256), True),
        ((2, 128, 128), True),
        ((127, 512), False),
        ((64, 64), False),
        ((300,), False),
        ((8, 256, 4), False),
    ],
)
def test_adafactor_is_t5s_with_small_tensors_unfactored(shape: tuple[int, ...], factored: bool) -> None:
    parameter = nn.Parameter(torch.randn(shape))
    gradients = [torch.randn(shape) * 10 ** (i - 2) for i in range(5)]
    expected = adafactor_by_hand(parameter.data, gradients, 0.01, factored)
    optimizer = Adafactor([parameter], lr=0.01)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    assert ("exp_avg_sq_row" in optimizer.state[parameter]) == factored
    torch.testing.assert_close(parameter.data.double(), expected, rtol=2e-5, atol=2e-6)


def test_weight_decay_spares_norms_biases_and_position_biases() -> None:
    model = create_model("bert-tiny")
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.01, lr=1e-3))
    names = {id(p): n for n, p in model.named_parameters()}
    decays = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert set(decays) == {n for n, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert (decays[name] > 0) == (parameter.dim() > 1 and "norm" not in name and not name.endswith("bias")), name
    assert not decayed("encoder.relative.weight", torch.ones(32, 4))


def test_frozen_parameters_are_left_out() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad_(False)
    assert [len(g["params"]) for g in build_optimizer(layer, OptimizerConfig()).param_groups] == [1]
    with pytest.raises(ValueError, match="freeze fewer"):
        build_optimizer(layer.requires_grad_(False), OptimizerConfig())


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
@pytest.mark.parametrize("most", [0.1, 1e6], ids=["clipped", "not clipped"])
def test_clipping_inside_a_fused_step_is_clipping_before_it(name: str, most: float) -> None:
    models = [nn.Linear(6, 4), nn.Linear(6, 4)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [build_optimizer(model, OptimizerConfig(name=name, lr=0.1)) for model in models]
    for _ in range(3):
        x = torch.randn(5, 6)
        for model in models:
            model(x).square().sum().backward()
        norm = clip(optimizers[0], most)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(models[1].parameters(), most))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.testing.assert_close(models[0].state_dict(), models[1].state_dict())
