"""RMSNorm and LayerNorm that hand on the dtype they are given; RMSNorm in few passes over memory in eager mode on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.devices import transformed
from tokenmix.ops.kernels import usable
from tokenmix.ops.linear import Linear

WIDEST = 4096  # a row of this many channels fits into the registers of a kernel


class _RmsNorm(torch.autograd.Function):
    """x̂ = x · r, r = (mean(x²) + ε)^-½, y = x̂ · w.   dx = r (g w − x̂ · mean(g w x̂)),  dw = Σ g x̂"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        r = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        ctx.eps = eps
        return (x * r).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # LayerNorm's fused gradient at mean 0 is ours but for a term − r · mean(g w), which is put back
        x, weight, r = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients are asked for
            return *_rms_gradients(grad, x, weight, ctx.eps), None
        width, zero = x.shape[-1], torch.zeros_like(r)
        dx, dw, _ = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), x, [width], zero, r, weight, torch.zeros_like(weight), [True, True, False]
        )
        mean = (grad.flatten(0, -2) @ weight).div_(width).view_as(r)
        return dx.addcmul_(mean, r), dw, None


def _rms_gradients(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """dx and dw of `_RmsNorm` in plain operators, themselves differentiable."""
    r = x.square().mean(-1, keepdim=True).add(eps).rsqrt()
    unit, g = x * r, grad * weight
    return r * (g - unit * (g * unit).mean(-1, keepdim=True)), (grad * unit).flatten(0, -2).sum(0)


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm`, faster in eager mode on a CPU; elsewhere PyTorch's own, which compiled graphs fuse."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype:  # under autocast: unit vectors in x's dtype, the weight at its own precision
            unit = nn.functional.rms_norm(x, self.normalized_shape, None, self.eps)
            return (unit * self.weight).to(x.dtype)
        plain = x.device.type != "cpu" or torch.compiler.is_compiling() or x.dim() < 2
        narrow = x.dtype in (torch.float16, torch.bfloat16)  # their sum of squares needs a wider type
        if plain or narrow or not torch.is_grad_enabled() or transformed():
            return super().forward(x)
        return _RmsNorm.apply(x, self.weight, self.eps)


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm`, computed in float32 under autocast, too, but handing on x's dtype: half the memory traffic."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):  # which would make a wider copy of x first
                return super().forward(x)
        return super().forward(x).to(x.dtype)


def gelu_norm(x: Tensor, layer: Linear, norm: LayerNorm) -> tuple[Tensor, Tensor]:
    """gelu of the first half of layer(x)'s channels, and the norm of gelu of the second; one kernel where there is one.

    >>> [half.shape for half in gelu_norm(torch.randn(2, 5, 3), Linear(3, 16), LayerNorm(8))]
    [torch.Size([2, 5, 8]), torch.Size([2, 5, 8])]
    """
    if usable(x) and norm.normalized_shape[0] <= WIDEST:
        from tokenmix.ops.kernels.gelu_norm import fused_gelu_norm

        h = layer(x, constant_bias=True)  # the kernel, which makes h's gradient, sums the bias's along the way
        return fused_gelu_norm(h, layer.bias, norm.weight, norm.bias, norm.eps)
    z1, z2 = nn.functional.gelu(layer(x)).chunk(2, -1)
    return z1, norm(z2)
