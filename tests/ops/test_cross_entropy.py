"""Cross-entropy over a vocabulary whose logits are never all there."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tokenmix.ops import linear_cross_entropy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def plainly(states: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, smoothing: float, z: float) -> Tensor:
    logits = (states @ weight.T if bias is None else states @ weight.T + bias).flatten(0, -2)
    labels = labels.flatten()
    real = labels != -100
    loss = cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    return (loss + z * (torch.logsumexp(logits, -1).square() * real).sum()) / real.sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 1e-2)])
@pytest.mark.parametrize("block", [1, 50 * 7, 1 << 27])
def test_loss_and_gradients_equal_the_plain_formula(
    device: str, biased: bool, smoothing: float, z: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tokenmix.ops.cross_entropy"], "BLOCK", block)
    dtype = torch.float64 if device == "cpu" else torch.float32
    leaves = [torch.randn(2, 10, 6), torch.randn(50, 6), torch.randn(50) if biased else None]
    states, weight, bias = (None if t is None else t.to(device, dtype).requires_grad_() for t in leaves)
    labels = torch.randint(50, (2, 10), device=device)
    labels[0, 3] = labels[1, 9] = -100
    wanted = [t for t in (states, weight, bias) if t is not None]
    loss = linear_cross_entropy(states, weight, labels, bias=bias, label_smoothing=smoothing, z_loss=z)
    right = plainly(states, weight, labels, bias, smoothing, z)
    tolerance = 1e-12 if device == "cpu" else 1e-5
    torch.testing.assert_close(loss, right, rtol=tolerance, atol=tolerance)
    for got, exact in zip(torch.autograd.grad(loss, wanted), torch.autograd.grad(right, wanted), strict=True):
        torch.testing.assert_close(got, exact, rtol=tolerance, atol=tolerance)


def test_a_given_count_replaces_the_number_of_labels() -> None:
    states, weight, labels = torch.randn(8, 4), torch.randn(9, 4), torch.randint(9, (8,))
    mean, shared = (linear_cross_entropy(states, weight, labels, count=n) for n in (None, 16))
    torch.testing.assert_close(mean, 2 * shared)


def test_nothing_to_predict_gives_zero() -> None:
    states = torch.randn(4, 3, requires_grad=True)
    loss = linear_cross_entropy(states, torch.randn(5, 3), torch.full((4,), -100))
    loss.backward()
    assert loss == 0
    assert not states.grad.any()


@pytest.mark.parametrize("biased", [False, True])
def test_functional_transforms_see_through(biased: bool) -> None:
    states, weight = torch.randn(3, 5, 6).double(), torch.randn(11, 6).double()
    bias = torch.randn(11).double() if biased else None
    labels = torch.randint(11, (3, 5))
    labels[1, 2:] = -100

    def ours(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return linear_cross_entropy(states, weight, labels, bias=bias, label_smoothing=0.1, z_loss=1e-2)

    def right(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return plainly(states, weight, labels, bias, 0.1, 1e-2)

    torch.testing.assert_close(ours(states, weight, labels), right(states, weight, labels))
    torch.testing.assert_close(
        torch.func.grad(ours, (0, 1))(states, weight, labels), torch.func.grad(right, (0, 1))(states, weight, labels)
    )
    each = torch.func.vmap(torch.func.grad(ours, (0, 1)), (0, None, 0))(states, weight, labels)
    for k in range(3):
        alone = torch.func.grad(right, (0, 1))(states[k], weight, labels[k])
        torch.testing.assert_close((each[0][k], each[1][k]), alone)
    curved = [torch.func.hessian(f)(states, weight, labels) for f in (ours, right)]
    torch.testing.assert_close(*curved)


@pytest.mark.parametrize("factor", [1, 2])
def test_gradients_of_gradients_are_refused_and_not_forgotten(factor: int) -> None:
    states, weight = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    loss = factor * linear_cross_entropy(states, weight, torch.randint(5, (4,)))
    (g,) = torch.autograd.grad(loss, states, create_graph=True)
    with pytest.raises(
        RuntimeError, match=r"no gradients of gradients through tokenmix::linear_cross_entropy.*torch\.func"
    ):
        g.square().sum().backward()


def test_shapes_on_the_meta_device() -> None:
    states, weight = torch.randn(4, 3, device="meta"), torch.randn(5, 3, device="meta")
    assert linear_cross_entropy(states, weight, torch.zeros(4, dtype=torch.long, device="meta")).shape == ()


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels must be \[2, 3\]"):
        linear_cross_entropy(torch.randn(2, 3, 4), torch.randn(5, 4), torch.zeros(2, 4, dtype=torch.long))


def test_no_graph_break_under_compile() -> None:
    states, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    labels = torch.randint(9, (6,))
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    loss, right = compiled(states, weight, labels), linear_cross_entropy(states, weight, labels)
    torch.testing.assert_close(loss, right)
    for a, b in zip(*(torch.autograd.grad(t, (states, weight)) for t in (loss, right)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
def test_half_precision_is_as_good_as_its_logits() -> None:
    states, weight = (torch.randn(n, 256, device="cuda") for n in (1000, 5000))
    labels = torch.randint(5000, (1000,), device="cuda")
    leaves = [(t * s).bfloat16().requires_grad_() for t, s in ((states, 1.0), (weight, 0.05))]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    loss = linear_cross_entropy(*leaves, labels)
    right = plainly(*exact, labels, None, 0.0, 0.0)
    torch.testing.assert_close(loss.double(), right, rtol=2e-3, atol=0)
    for got, want in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(right, exact), strict=True):
        assert (got.double() - want).norm() / want.norm() < 1e-2


def test_sums_over_many_tokens_fit_no_16_bit_number():
    from tokenmix.ops.cross_entropy import _add_product, _column_sums

    ones = torch.ones(70_000, 2, dtype=torch.float16)
    assert torch.equal(_column_sums(ones, torch.float32), torch.full((2,), 70_000.0))
    assert torch.equal(_add_product(None, ones, ones, torch.float32), torch.full((2, 2), 70_000.0))
