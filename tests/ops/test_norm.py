"""The CPU's RMSNorm against PyTorch's, with gradients of first and second order."""

import pytest
import torch
from torch import nn

from tokenmix.ops.linear import Linear
from tokenmix.ops.norm import LayerNorm, RMSNorm, gelu_norm


def test_output_and_gradients_equal_pytorchs():
    ours, theirs = RMSNorm(12, eps=1e-6).double(), nn.RMSNorm(12, eps=1e-6).double()
    with torch.no_grad():
        ours.weight.normal_()
        theirs.weight.copy_(ours.weight)
    x = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(x)
    out, expected = ours(x), theirs(x)
    assert torch.allclose(out, expected)
    got = torch.autograd.grad((out * weight).sum(), [x, ours.weight])
    want = torch.autograd.grad((expected * weight).sum(), [x, theirs.weight])
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))


def test_zero_rows_and_empty_batches_are_finite():
    norm = RMSNorm(4, eps=1e-6)
    x = torch.zeros(2, 4, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()
    assert norm(torch.zeros(0, 4, requires_grad=True)).shape == (0, 4)


def test_gradients_are_right_by_finite_differences():
    norm = RMSNorm(5, eps=1e-6).double()
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,))


NORMS = {
    "rms": lambda: (RMSNorm(5, eps=1e-6).double(), lambda norm, x: norm(x)),
    "layer": lambda: (LayerNorm(5).double(), lambda norm, x: norm(x)),
    "gelu": lambda: (_Gelu().double(), lambda block, x: torch.cat(gelu_norm(x, block.layer, block.norm), -1)),
}


class _Gelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = Linear(5, 10), LayerNorm(5)


@pytest.mark.parametrize("name", NORMS)
def test_second_derivatives_are_right_by_finite_differences(name):
    norm, apply = NORMS[name]()
    parameters = dict(norm.named_parameters())
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    values = [torch.randn_like(p).requires_grad_() for p in parameters.values()]

    class Applied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return apply(self.norm, x)

    def function(x, *values):
        given = {f"norm.{name}": v for name, v in zip(parameters, values, strict=True)}
        return torch.func.functional_call(Applied(), given, (x,))

    assert torch.autograd.gradgradcheck(function, (x, *values))


def test_a_constant_gradient_has_second_derivatives_too():
    """The gradient that comes in asks for none: nothing but x and the weight does."""
    ours, theirs = RMSNorm(6, eps=1e-6), nn.RMSNorm(6, eps=1e-6)
    x = torch.randn(4, 6, requires_grad=True)
    found = []
    for norm in (ours, theirs):
        (g,) = torch.autograd.grad(norm(x)[:, :3].sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [x, norm.weight]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_layer_norm_hands_on_its_dtype_under_autocast():
    norm = LayerNorm(32)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 5, 32).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, torch.nn.functional.layer_norm(x.float(), (32,), norm.weight, norm.bias).bfloat16())


def test_gelu_norm_is_gelu_and_the_norm_of_the_second_half():
    layer, norm, x = Linear(4, 12), LayerNorm(6), torch.randn(2, 3, 4)
    torch.nn.init.normal_(norm.weight)
    z1, z2 = gelu_norm(x, layer, norm)
    z = torch.nn.functional.gelu(layer(x))
    assert torch.allclose(z1, z[..., :6], atol=1e-6)
    assert torch.allclose(z2, norm(z[..., 6:]), atol=1e-6)


def test_a_constant_bias_changes_no_number_and_gets_no_gradient():
    layer, x = Linear(4, 6), torch.randn(3, 4)
    y = layer(x, constant_bias=True)
    assert torch.equal(y, layer(x))
    y.square().sum().backward()
    assert layer.bias.grad is None
    assert layer.weight.grad is not None
    assert Linear(4, 6, bias=False)(x, constant_bias=True).shape == (3, 6)
