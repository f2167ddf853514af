"""A two-layer network over a window of tokens, the same for every channel, whose hidden values are never stored whole.

    y_t = Σ_h a_h · gelu(Σ_{s<w} W[h, s] · x_{t−s} + b_h)

There are `hidden` times as many of them as of x. A kernel keeps them in registers where there is one; elsewhere they are
made some rows at a time, forward and again backward, behind one operator: a compiler that sees the loop unrolls it, layer
after layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from tokenmix.devices import product_dtype, transformed
from tokenmix.ops.kernels import usable
from tokenmix.ops.once import once

CHUNK = {"cpu": 1 << 22, "cuda": 1 << 28}  # hidden values held at once
WIDEST = {torch.float32: 17, torch.float16: 33, torch.bfloat16: 33}  # windows whose blocks fit a kernel's registers


def window_mlp(x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """x [batch, window − 1 + length, channels], older tokens first; w [hidden, window], b and a [hidden].

    >>> window_mlp(torch.randn(2, 3 + 10, 8), torch.randn(16, 4), torch.zeros(16), torch.randn(16)).shape
    torch.Size([2, 10, 8])
    """
    length = x.shape[1] - w.shape[1] + 1
    if _fits_kernel(x, w, length):
        from tokenmix.ops.kernels.window import fused_window_mlp

        return fused_window_mlp(x.to(product_dtype(x)), w, b, a)
    if x.shape[0] * x.shape[2] <= _rows_at_once(x.device, length, w) or transformed():
        # [batch, channels, length, window]: along the last dimension, since the compiler of torch 2.13 gets the gradient
        # of windows along another one wrong on a CPU
        windows = x.transpose(1, 2).unfold(-1, w.shape[1], 1)
        return (gelu(windows @ w.flip(-1).T + b) @ a).transpose(1, 2)
    return _forward(x, w, b, a)


def _fits_kernel(x: Tensor, w: Tensor, length: int) -> bool:
    """Decoding steps would not fill a block; hidden units beyond 64 are computed in many groups."""
    return usable(x) and length >= 16 and 1 <= w.shape[0] <= 64 and w.shape[1] <= WIDEST.get(product_dtype(x), 0)


def _rows_at_once(device: torch.device, length: int, w: Tensor) -> int:
    return max(1, CHUNK.get(device.type, CHUNK["cuda"]) // max(1, length * w.shape[0]))


def _by_channel(x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, range]:
    """x as [batch · channels, tokens], w as [window, hidden] from the oldest token on, all in x's dtype; first rows."""
    rows = x.transpose(1, 2).flatten(0, 1)
    step = _rows_at_once(x.device, x.shape[1] - w.shape[1] + 1, w)
    return rows, w.flip(-1).T.to(x.dtype), b.to(x.dtype), a.to(x.dtype), range(0, rows.shape[0], step)


@torch.library.custom_op("tokenmix::window_mlp", mutates_args=())
def _forward(x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> Tensor:
    window, length = w.shape[1], x.shape[1] - w.shape[1] + 1
    rows, w, b, a, blocks = _by_channel(x, w, b, a)
    y = rows.new_empty(rows.shape[0], length)
    with torch.autocast(x.device.type, enabled=False):
        for first in blocks:
            part = rows[first : first + blocks.step].unfold(-1, window, 1).reshape(-1, window)
            y[first : first + blocks.step] = (gelu(torch.addmm(b, part, w)) @ a).view(-1, length)
    return y.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2).contiguous()


@_forward.register_fake
def _(x, w, b, a):
    return x.new_empty(x.shape[0], x.shape[1] - w.shape[1] + 1, x.shape[2])


@torch.library.custom_op("tokenmix::window_mlp_backward", mutates_args=())
def _backward(grad: Tensor, x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w, b and a; the last three are summed in float32 at least."""
    window, hidden = w.shape[1], w.shape[0]
    totals = [t.new_zeros(shape, dtype=torch.promote_types(t.dtype, torch.float32))
              for t, shape in ((w, (window, hidden)), (b, (hidden,)), (a, (hidden,)))]  # fmt: skip
    rows, wide, b, a, blocks = _by_channel(x, w, b, a)
    g = grad.transpose(1, 2).flatten(0, 1).to(x.dtype)
    dx = torch.empty_like(rows)
    with torch.autocast(x.device.type, enabled=False):
        for first in blocks:
            block = slice(first, first + blocks.step)
            part, mine = rows[block].unfold(-1, window, 1).reshape(-1, window), g[block].reshape(-1)
            z = torch.addmm(b, part, wide)
            dz = torch.ops.aten.gelu_backward(mine[:, None] * a, z)
            for total, found in zip(totals, (part.T @ dz, dz.sum(0), mine @ gelu(z)), strict=True):
                total += found
            size = list(rows[block].shape)
            dx[block] = torch.ops.aten.unfold_backward((dz @ wide.T).view(size[0], -1, window), size, 1, window, 1)
    dw, db, da = totals
    dx = dx.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2).contiguous()
    return dx, dw.T.flip(-1).to(w.dtype).contiguous(), db.to(w.dtype), da.to(w.dtype)


@_backward.register_fake
def _(grad, x, w, b, a):
    return x.new_empty(x.shape), w.new_empty(w.shape), w.new_empty(b.shape), w.new_empty(a.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


_forward.register_autograd(lambda ctx, g: _backward(g, *ctx.saved_tensors), setup_context=_remember)
once(_backward)
