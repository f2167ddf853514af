"""The faster linear layer is `nn.Linear`: output, every gradient, gradients of gradients, and wherever it is not taken."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tokenmix.ops import linear as module
from tokenmix.ops.linear import Linear, fast, gelu_linear, product

available = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch comes without oneDNN")


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 0)


def pair(bias: bool) -> tuple[Linear, nn.Linear]:
    ours = Linear(24, 40, bias=bias)
    theirs = nn.Linear(24, 40, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs.double()


@available
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 24), (3, 5, 24), (2, 3, 4, 24)])
def test_output_and_every_gradient(bias: bool, shape: tuple[int, ...]) -> None:
    ours, theirs = pair(bias)
    x = torch.randn(shape, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    assert fast(x, ours.weight, ours.bias)
    y, right = ours(x), theirs(exact)
    torch.testing.assert_close(y.double(), right, rtol=1e-5, atol=1e-6)
    g = torch.randn_like(y)
    for name, got, want in zip(
        ("input", *dict(ours.named_parameters())),
        torch.autograd.grad(y, (x, *ours.parameters()), g),
        torch.autograd.grad(right, (exact, *theirs.parameters()), g.double()),
        strict=True,
    ):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


LAYOUTS = {
    "transposed": lambda: torch.randn(24, 6).t(),
    "strided": lambda: torch.randn(6, 48)[:, ::2],
    "expanded": lambda: torch.randn(1, 24).expand(6, 24),
    "one number": lambda: torch.randn(()).expand(6, 24),
    "rows apart": lambda: torch.randn(6, 30)[:, 3:27],
}


@available
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_any_layout(layout: str) -> None:
    x = LAYOUTS[layout]()
    ours, theirs = pair(bias=True)
    torch.testing.assert_close(ours(x).double(), theirs(x.double()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(product(x, ours.weight), x @ ours.weight.t(), rtol=1e-5, atol=1e-5)
    back = Linear(40, 24)  # the same view as a gradient
    y = torch.randn(6, 40, requires_grad=True)
    dy, dw = torch.autograd.grad(back(y), (y, back.weight), x)
    torch.testing.assert_close(dy, x @ back.weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dw, x.t() @ y, rtol=1e-5, atol=1e-5)


@available
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("rows", [None, slice(0, 16), slice(16, None)], ids=["all", "first", "rest"])
def test_gelu_in_the_same_pass(approximate: str, rows: slice | None) -> None:
    ours, theirs = pair(bias=True)
    x = torch.randn(3, 5, 24)
    right = nn.functional.gelu(theirs(x.double()), approximate=approximate)[..., rows or slice(None)]
    with torch.no_grad():
        torch.testing.assert_close(
            gelu_linear(ours, x, approximate=approximate, rows=rows).double(), right, rtol=1e-4, atol=1e-5
        )
    y = gelu_linear(ours, x, approximate=approximate, rows=rows)
    torch.testing.assert_close(y.double(), right, rtol=1e-5, atol=1e-6)
    for got, want in zip(
        torch.autograd.grad(y.sum(), tuple(ours.parameters())),
        torch.autograd.grad(right.sum(), tuple(theirs.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@available
def test_gradients_of_gradients() -> None:
    ours = Linear(5, 4)
    x = torch.randn(3, 5, requires_grad=True)

    def penalty(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), layer.weight)[0]

    theirs = nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(penalty(ours, x), penalty(theirs, x), rtol=1e-5, atol=1e-5)


def test_what_oneDNN_is_not_asked_for() -> None:
    layer = Linear(8, 8)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert not fast(x.double(), layer.weight.double())
    assert not fast(x.to("meta"), layer.weight.to("meta"))
    assert not fast(x, layer.weight.bfloat16())
    assert layer(x[0]).shape == (8,)
    assert layer(x[:0]).shape == (0, 8)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x))
    torch.testing.assert_close(
        torch.func.grad(lambda x: layer(x).sum())(x), layer.weight.sum(0).expand(4, 8), rtol=1e-5, atol=1e-5
    )
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent[0], layer.weight.sum(1))
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_small_products_stay_where_a_call_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not fast(torch.randn(8, 64), torch.randn(64, 64))
    torch.testing.assert_close(product(torch.ones(2, 3), torch.ones(4, 3)), torch.full((2, 4), 3.0))
