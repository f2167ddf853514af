"""x Wᵀ + b by the faster library: on a CPU in float32, oneDNN's product beats the one PyTorch takes by about a tenth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.devices import transformed

LARGE = 1 << 24  # multiply-adds from which oneDNN's 15 µs for setting up a call pay


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, not differentiable; W may be a transposed view, which costs nothing."""
    if not fast(x, weight, bias):
        return nn.functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def fast(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether oneDNN takes this product: plain float32 tensors on a CPU, and enough of them."""
    return (
        not torch.compiler.is_compiling()
        and x.numel() * weight.shape[0] >= LARGE
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and type(x) in _PLAIN
        and type(weight) in _PLAIN
        and (bias is None or (type(bias) in _PLAIN and bias.dtype == torch.float32))
        and bool(torch.backends.mkldnn.enabled)
        and torch.backends.mkldnn.is_available()
        and not torch.is_autocast_enabled("cpu")
        and not transformed()
    )


_PLAIN = (Tensor, nn.Parameter)


def gelu_linear(layer: nn.Linear, x: Tensor, *, approximate: str = "none", rows: slice | None = None) -> Tensor:
    """gelu(x Wᵀ + b), on a CPU without gradients in one pass; `rows` of W and b alone, where given."""
    weight: Tensor = layer.weight if rows is None else layer.weight[rows]
    bias: Tensor | None = layer.bias if rows is None or layer.bias is None else layer.bias[rows]
    if not torch.is_grad_enabled() and fast(x, weight, bias):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], approximate)
    y = layer(x) if rows is None else linear(x, weight, bias)
    return nn.functional.gelu(y, approximate=approximate)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b with gradients."""
    if x.dim() < 2 or not fast(x, weight, bias):
        return nn.functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b.   dx = g W,  dW = gᵀ x,  db = Σ g"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:  # grad mode is on here only where gradients of gradients are asked for
            dx = grad @ weight if torch.is_grad_enabled() else product(grad, weight.t())
        if ctx.needs_input_grad[1]:
            dw = grad.flatten(0, -2).t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            db = grad.flatten(0, -2).sum(0)
        return dx, dw, db


class Linear(nn.Linear):
    """`nn.Linear`, faster for large products in float32 on a CPU; everywhere else PyTorch's own."""

    def forward(self, x: Tensor, *, constant_bias: bool = False) -> Tensor:
        """`constant_bias`: b gets no gradient here; whoever takes y sees to it."""
        bias = self.bias.detach() if constant_bias and self.bias is not None else self.bias
        return linear(x, self.weight, bias)
