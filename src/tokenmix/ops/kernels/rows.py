"""Small reductions on the way back of `persist`, one pass over memory each.

row_dot       D[b, i, h] = Σ_c p[b, i, c] q[b, i, c] over the channels c of head h
alpha_grad    dα = g ⊙ (s ⊙ x − (x − s)), as it is or summed over examples and positions
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _row_dot(p, q, out, spb, spi, spc, sqb, sqi, sqc, length, width, heads, BD: tl.constexpr):
    b = (tl.program_id(0) // length).to(tl.int64)
    i = tl.program_id(0) % length
    head = tl.program_id(1)
    acc = tl.zeros((BD,), tl.float32)
    for d0 in range(0, width, BD):
        d = d0 + tl.arange(0, BD)
        c = head * width + d
        u = tl.load(p + b * spb + i * spi + c * spc, mask=d < width, other=0.0).to(tl.float32)
        v = tl.load(q + b * sqb + i * sqi + c * sqc, mask=d < width, other=0.0).to(tl.float32)
        acc += u * v
    tl.store(out + tl.program_id(0).to(tl.int64) * heads + head, tl.sum(acc, 0))


def row_dot(p: Tensor, q: Tensor, heads: int) -> Tensor:
    """Σ over each head's channels of p ⊙ q, both [batch, length, channels]: [batch, length, heads] in float32."""
    batch, length, channels = p.shape
    width = channels // heads
    out = p.new_empty(batch, length, heads, dtype=torch.float32)
    block = min(1024, triton.next_power_of_2(width))
    _row_dot[(batch * length, heads)](p, q, out, *p.stride(), *q.stride(), length, width, heads, BD=block)
    return out


@triton.jit
def _alpha_grad(
    g, s, x, out, sgb, sgi, sgc, sxb, sxi, sxc, length, channels, rows,
    SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    acc = tl.zeros((BC,), tl.float32)
    for step in range(STEPS):
        r = (tl.program_id(0) * STEPS + step) * BR + tl.arange(0, BR)
        b = (r // length).to(tl.int64)[:, None]
        i = (r % length)[:, None]
        real = (r < rows)[:, None] & (c < channels)[None, :]
        dense = r[:, None].to(tl.int64) * channels + c[None, :]
        gt = tl.load(g + b * sgb + i * sgi + c[None, :] * sgc, mask=real, other=0.0).to(tl.float32)
        st = tl.load(s + dense, mask=real, other=0.0).to(tl.float32)
        xt = tl.load(x + b * sxb + i * sxi + c[None, :] * sxc, mask=real, other=0.0).to(tl.float32)
        da = gt * (st * xt - (xt - st))
        if SUM:
            acc += tl.sum(da, 0)
        else:
            tl.store(out + dense, da.to(out.dtype.element_ty), mask=real)
    if SUM:
        tl.store(out + tl.program_id(0).to(tl.int64) * channels + c, acc, mask=c < channels)


def alpha_grad(g: Tensor, s: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """The gradient of alpha [channels] or [batch, length, channels]; s is contiguous."""
    batch, length, channels = g.shape
    summed = alpha.dim() == 1
    rows, steps = batch * length, 16 if summed else 1
    grid = (triton.cdiv(rows, 32 * steps), triton.cdiv(channels, 128))
    shape, dtype = ((grid[0], channels), torch.float32) if summed else ((batch, length, channels), alpha.dtype)
    out = g.new_empty(shape, dtype=dtype)
    _alpha_grad[grid](g, s, x, out, *g.stride(), *x.stride(), length, channels, rows, SUM=summed, BR=32, BC=128,
                      STEPS=steps)  # fmt: skip
    return out.sum(0).to(alpha.dtype) if summed else out
