"""The gated feed-forward network of T5.1.1 as one operator, which on a Hopper GPU makes what is elementwise beside products.

    a, b = x W₁ᵀ, x W₂ᵀ,  h = gelu(a) ⊙ b,  y = h W₃ᵀ                              gelu in its tanh form
    dh = g W₃,  da = dh ⊙ b ⊙ gelu'(a),  db = dh ⊙ gelu(a)
    dx = da W₁ + db W₂,  dW₁ = daᵀ x,  dW₂ = dbᵀ x,  dW₃ = gᵀ h

Kept for the way back are x, [a | b] and the weights; h, a third of a sublayer's memory, is made anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from tokenmix.devices import product_dtype, transformed
from tokenmix.ops import reference
from tokenmix.ops.kernels import on_hopper, usable
from tokenmix.ops.once import once

MANY = 4096  # tokens from which on a GPU is busy with a kernel's tiles


def geglu(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """(gelu(x W₁ᵀ) ⊙ x W₂ᵀ) W₃ᵀ, gelu in its tanh form.

    Args:
        x: [..., d_model]
        w1, w2: [d_ff, d_model], weights of linear layers, as is w3.
        w3: [d_model, d_ff]

    >>> x, w1, w2, w3 = torch.randn(2, 5, 16), torch.randn(32, 16), torch.randn(32, 16), torch.randn(16, 32)
    >>> geglu(x, w1, w2, w3).shape
    torch.Size([2, 5, 16])
    """
    if transformed():
        return reference.geglu(x, w1, w2, w3)
    dtype = product_dtype(x)
    w = torch.cat([w1.to(dtype), w2.to(dtype)])
    return torch.ops.tokenmix.geglu(x.to(dtype).flatten(0, -2), w, w3.to(dtype))[0].view(x.shape)


def fits_geglu(x: Tensor, w1: Tensor) -> bool:
    """Is `geglu` the fastest way for x: are gradients wanted, and are there kernels, and tokens enough for them?"""
    many = x.numel() >= MANY * x.shape[-1]
    return torch.is_grad_enabled() and many and usable(x) and _fused(x, product_dtype(x), w1.shape[0])


def _fused(x: Tensor, dtype: torch.dtype, width: int) -> bool:
    """Can the kernels make [a | b] and h of so many columns each of x in this type?"""
    whole = x.shape[-1] % 64 == 0 and width % 256 == 0
    return x.is_cuda and dtype in (torch.bfloat16, torch.float16) and whole and on_hopper()


def _aligned(t: Tensor) -> Tensor:
    """t, or a copy, as the bulk copy engine can read it."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _expand(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """[a | b] and h."""
    if usable(x) and _fused(x, x.dtype, w.shape[0] // 2):
        from tokenmix.ops.kernels.geglu_hopper import expand

        return expand(_aligned(x), _aligned(w))
    both = x @ w.t()
    a, b = both.chunk(2, -1)
    return both, gelu(a, approximate="tanh") * b


def _contract(g: Tensor, both: Tensor, w3: Tensor) -> tuple[Tensor, Tensor]:
    """[da | db] and h."""
    if usable(g) and _fused(g, g.dtype, w3.shape[1]):
        from tokenmix.ops.kernels.geglu_hopper import contract

        return contract(_aligned(g), both, _aligned(w3.t()))
    dh = g @ w3
    a, b = both.chunk(2, -1)
    unit = gelu(a, approximate="tanh")
    da = torch.ops.aten.gelu_backward(dh * b, a, approximate="tanh")
    return torch.cat([da, dh * unit], -1), unit * b


@torch.library.custom_op("tokenmix::geglu", mutates_args=())
def geglu_op(x: Tensor, w: Tensor, w3: Tensor) -> tuple[Tensor, Tensor]:
    """y and [a | b] of x [tokens, d_model], w = [W₁; W₂] and W₃, all of one type."""
    both, h = _expand(x, w)
    return h @ w3.t(), both


@geglu_op.register_fake
def _(x: Tensor, w: Tensor, w3: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[0], w.shape[0])


@torch.library.custom_op("tokenmix::geglu_backward", mutates_args=())
def geglu_backward(g: Tensor, x: Tensor, both: Tensor, w: Tensor, w3: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, w and W₃."""
    d_both, h = _contract(g, both, w3)
    return d_both @ w, d_both.t() @ x, g.t() @ h


@geglu_backward.register_fake
def _(g: Tensor, x: Tensor, both: Tensor, w: Tensor, w3: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), w.new_empty(w.shape), w3.new_empty(w3.shape)


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # [a | b] has none
    x, w, w3 = inputs
    ctx.save_for_backward(x, output[1], w, w3)


def _grads(ctx: Any, g: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if g is None:
        return None, None, None
    return torch.ops.tokenmix.geglu_backward(g, *ctx.saved_tensors)


geglu_op.register_autograd(_grads, setup_context=_setup)
once(geglu_backward)
