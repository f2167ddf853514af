"""The kernel of gelu and norm against the formulas, output and every gradient; how it is run: `test_kernels.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_cases import DEVICE, disagreements, draw, needs_kernels, real_and_fake
from torch import Tensor

from tokenmix.ops.linear import Linear
from tokenmix.ops.norm import LayerNorm, gelu_norm


def gelu_norm_case(*shape: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """h without the bias of its linear layer, that bias, and the norm's parameters."""
    width = shape[-1] // 2
    parameters = {
        "linear_bias": torch.randn(2 * width, device=DEVICE),
        "weight": torch.rand(width, device=DEVICE) + 0.5,
    }
    return {"x": draw(*shape, dtype=dtype), **parameters, "bias": torch.randn(width, device=DEVICE)}


def fast_gelu_norm(x: Tensor, linear_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from tokenmix.ops.kernels.gelu_norm import fused_gelu_norm

    h = (x + linear_bias.detach()).to(x.dtype)
    return torch.cat(fused_gelu_norm(h, linear_bias, weight, bias, 1e-5), -1)


def exact_gelu_norm(x: Tensor, linear_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    first, second = torch.nn.functional.gelu(x + linear_bias).chunk(2, -1)
    return torch.cat([first, torch.nn.functional.layer_norm(second, weight.shape, weight, bias, 1e-5)], -1)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape",  # rows of 3 · 8, 5 · 8, 8 + 2, 128 and 3 · 32 columns, the last in more blocks than there are programs
    [(2, 5, 48), (3, 1, 80), (3, 20), (2, 3, 256), (25, 16, 192)]
    + [pytest.param(shape, marks=pytest.mark.gpu) for shape in [(16, 196, 1536), (64, 196, 1536), (4, 37, 8192)]],
)
def test_gelu_norm_equals_the_formulas(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert not disagreements(fast_gelu_norm, exact_gelu_norm, gelu_norm_case(*shape, dtype=dtype))


@needs_kernels
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [768, 1024])
def test_every_configuration_of_gelu_norm_agrees(
    width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmix.ops.kernels import gelu_norm as module

    given = gelu_norm_case(40, 196, 2 * width, dtype=dtype)
    for name in ("FORWARD", "BACKWARD"):
        for config in getattr(module, name):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, [config])
                assert not disagreements(fast_gelu_norm, exact_gelu_norm, given), config


@needs_kernels
def test_rows_are_cut_into_few_pieces_with_little_padding() -> None:
    from tokenmix.ops.kernels.gelu_norm import _block

    exact = {8: 8, 24: 8, 40: 8, 96: 32, 512: 512, 768: 256, 1024: 1024, 1280: 256, 1536: 512, 3072: 1024, 4096: 4096}
    assert {width: _block(width) for width in exact} == exact
    for width in range(8, 4097):
        pieces = -(-width // _block(width))
        assert pieces <= 7
        assert pieces * _block(width) <= 1.25 * width + 8


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
def test_gelu_norm_gives_its_linear_layer_all_gradients(bias: bool) -> None:
    """Also where the kernel sums the bias's; alone, in one graph, and with the bias used a second time."""
    layer, norm = Linear(7, 48, bias=bias).to(DEVICE), LayerNorm(24).to(DEVICE)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 9, 7, device=DEVICE, requires_grad=True)
    leaves = [x, *layer.parameters(), *norm.parameters()]

    def loss(function: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
        z1, z2 = function(x, layer, norm)
        return (z1.square() + z2).square().mean() + (layer.bias.square().sum() if bias else 0)

    def plain(x: Tensor, layer: Linear, norm: LayerNorm) -> tuple[Tensor, Tensor]:
        z1, z2 = torch.nn.functional.gelu(layer(x)).chunk(2, -1)
        return z1, norm(z2)

    right = torch.autograd.grad(loss(plain), leaves)
    for function in (gelu_norm, torch.compile(gelu_norm, fullgraph=True, backend="aot_eager")):
        found = torch.autograd.grad(loss(function), leaves)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_operators_of_gelu_norm_keep_their_promises() -> None:
    from tokenmix.ops.kernels.gelu_norm import gelu_norm_backward, gelu_norm_op

    h, linear_bias, weight, bias = gelu_norm_case(2, 5, 48, dtype=torch.float32).values()
    for given in (linear_bias, None):
        arguments = [t if t is None else t.clone().requires_grad_() for t in (h, given, weight, bias)]
        found = torch.library.opcheck(gelu_norm_op, (*arguments, 1e-5))  # schema, fake tensors, autograd, compiled
        assert len(found) >= 4
        assert set(found.values()) == {"SUCCESS"}
    _, _, mean, scale = gelu_norm_op(h, linear_bias, weight, bias, 1e-5)
    pairs = real_and_fake(gelu_norm_backward, h[..., :24].clone(), h[..., 24:], h, weight, mean, scale)
    assert len(pairs) == 2
    assert all(real == fake for real, fake in pairs), pairs


@needs_kernels
@pytest.mark.gpu
def test_gradients_of_gelu_norm_have_the_same_bits_every_time() -> None:
    leaves = {name: t.requires_grad_() for name, t in gelu_norm_case(64, 196, 1536, dtype=torch.bfloat16).items()}

    def grads() -> tuple[Tensor, ...]:
        return torch.autograd.grad(fast_gelu_norm(**leaves).float().square().sum(), list(leaves.values()))

    first, *others = (grads() for _ in range(3))
    for other in others:
        assert all(torch.equal(mine, right) for mine, right in zip(other, first, strict=True))


@needs_kernels
def test_gelu_of_narrow_numbers_is_exact_up_to_their_rounding() -> None:
    from tokenmix.ops.kernels.gelu_norm import fused_gelu_norm

    h = torch.linspace(-9, 9, 4096, device=DEVICE).to(torch.bfloat16).view(4, 1024).requires_grad_()
    weight, bias = torch.ones(512, device=DEVICE), torch.zeros(512, device=DEVICE)
    z1, _ = fused_gelu_norm(h, None, weight, bias, 1e-5)
    z1.sum().backward()
    x = h.detach().double()[:, :512].requires_grad_()
    exact = torch.nn.functional.gelu(x)
    exact.sum().backward()
    assert torch.allclose(z1.double(), exact, rtol=2**-7, atol=1e-4)  # the interpreter truncates
    assert torch.allclose(h.grad[:, :512].double(), x.grad, rtol=2**-7, atol=1e-4)
