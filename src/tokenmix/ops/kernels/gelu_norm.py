"""gelu of both halves of a row and the norm of the second, forward and backward, each in one pass over memory.

z₁ = gelu(a),  z₂ = norm(g) w + b,  g = gelu(c)                     of a row h = [a, c]
da = dz₁ gelu'(a),  dc = dg gelu'(c),  dg = r (dx − mean(dx) − x̂ mean(dx x̂)),  dx = w dz₂,  x̂ = (g − mean(g)) r
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmix.ops.kernels.gelu import cdf, slope
from tokenmix.ops.kernels.tune import Config, choose, processors
from tokenmix.ops.once import once


@triton.jit
def _forward(
    h, w, b, z1, z2, mean, r, rows, width, eps, NARROW: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0) * R + tl.arange(0, R)
    d = tl.arange(0, BLOCK)
    real = (d < width)[None, :]
    inside = (i < rows)[:, None] & real
    place = i.to(tl.int64)[:, None] * width + d[None, :]
    source = place + i.to(tl.int64)[:, None] * width  # rows of h are twice as long
    a = tl.load(h + source, mask=inside, other=0.0).to(tl.float32)
    tl.store(z1 + place, (a * cdf(a, NARROW)).to(z1.dtype.element_ty), mask=inside)
    c = tl.load(h + source + width, mask=inside, other=0.0).to(tl.float32)
    g = c * cdf(c, NARROW)
    m = tl.sum(g, 1) / width
    g = tl.where(real, g - m[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(g * g, 1) / width + eps)
    gain = tl.load(w + d, mask=d < width, other=0.0).to(tl.float32)[None, :]
    shift = tl.load(b + d, mask=d < width, other=0.0).to(tl.float32)[None, :]
    tl.store(z2 + place, (g * scale[:, None] * gain + shift).to(z2.dtype.element_ty), mask=inside)
    tl.store(mean + i, m, mask=i < rows)
    tl.store(r + i, scale, mask=i < rows)


@triton.jit
def _backward(
    dz1, dz2, h, w, mean, r, dh, dw, db, rows, width, blocks,
    NARROW: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)
    real = (d < width)[None, :]
    gain = tl.load(w + d, mask=d < width, other=0.0).to(tl.float32)[None, :]
    sum_w = tl.zeros((BLOCK,), tl.float32)
    sum_b = tl.zeros((BLOCK,), tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        i = block * R + tl.arange(0, R)
        inside = (i < rows)[:, None] & real
        place = i.to(tl.int64)[:, None] * width + d[None, :]
        source = place + i.to(tl.int64)[:, None] * width
        a = tl.load(h + source, mask=inside, other=0.0).to(tl.float32)
        da = tl.load(dz1 + place, mask=inside, other=0.0).to(tl.float32) * slope(a, cdf(a, NARROW))
        tl.store(dh + source, da.to(dh.dtype.element_ty), mask=inside)
        c = tl.load(h + source + width, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dz2 + place, mask=inside, other=0.0).to(tl.float32)
        m = tl.load(mean + i, mask=i < rows, other=0.0)[:, None]
        scale = tl.load(r + i, mask=i < rows, other=0.0)[:, None]
        p = cdf(c, NARROW)
        x = tl.where(inside, (c * p - m) * scale, 0.0)
        dx = dy * gain
        dg = scale * (dx - (tl.sum(dx, 1) / width)[:, None] - x * (tl.sum(dx * x, 1) / width)[:, None])
        tl.store(dh + source + width, (dg * slope(c, p)).to(dh.dtype.element_ty), mask=inside)
        sum_w += tl.sum(dy * x, 0)
        sum_b += tl.sum(dy, 0)
    tl.store(dw + tl.program_id(0) * width + d, sum_w, mask=d < width)
    tl.store(db + tl.program_id(0) * width + d, sum_b, mask=d < width)


CONFIGS: list[Config] = [  # numbers in a tile of whole rows
    {"most": 4096, "num_warps": 8},
    {"most": 2048, "num_warps": 8},
    {"most": 2048, "num_warps": 4},
    {"most": 1024, "num_warps": 4},
]


def _tile(config: Config, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Rows and columns of a tile, and whether its numbers are narrow."""
    block = triton.next_power_of_2(width)
    tile = {"R": max(1, config["most"] // block), "BLOCK": block, "num_warps": config["num_warps"]}
    return {**tile, "NARROW": dtype != torch.float32}


@torch.library.custom_op("tokenmix::gelu_norm", mutates_args=())
def gelu_norm_op(h: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(z₁, z₂, mean, 1/deviation) of h [..., 2 · width]; the statistics are [rows] in float32."""
    h = h.contiguous()
    width, rows = h.shape[-1] // 2, h.shape[:-1].numel()
    z1, z2 = (h.new_empty(*h.shape[:-1], width) for _ in range(2))
    mean, scale = (h.new_empty(rows, dtype=torch.float32) for _ in range(2))

    def launch(config: Config) -> None:
        tile = _tile(config, width, h.dtype)
        grid = (triton.cdiv(rows, tile["R"]),)
        _forward[grid](h, weight, bias, z1, z2, mean, scale, rows, width, eps, **tile)

    launch(choose("gelu_norm", (h.dtype, rows, width), CONFIGS, launch))
    return z1, z2, mean, scale


@gelu_norm_op.register_fake
def _(h, weight, bias, eps):
    half = (*h.shape[:-1], h.shape[-1] // 2)
    rows = h.shape[:-1].numel()
    return h.new_empty(half), h.new_empty(half), *(h.new_empty(rows, dtype=torch.float32) for _ in range(2))


@torch.library.custom_op("tokenmix::gelu_norm_backward", mutates_args=())
def gelu_norm_backward(
    dz1: Tensor, dz2: Tensor, h: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of h, weight and bias."""
    dz1, dz2, h = dz1.contiguous(), dz2.contiguous(), h.contiguous()
    width, rows = h.shape[-1] // 2, h.shape[:-1].numel()
    dh = torch.empty_like(h)

    def launch(config: Config) -> tuple[Tensor, Tensor]:
        tile = _tile(config, width, h.dtype)
        blocks = triton.cdiv(rows, tile["R"])
        programs = min(blocks, 4 * processors())
        dw, db = (h.new_empty(programs, width, dtype=torch.float32) for _ in range(2))
        _backward[(programs,)](dz1, dz2, h, weight, mean, scale, dh, dw, db, rows, width, blocks, **tile)
        return dw, db

    dw, db = launch(choose("gelu_norm_backward", (h.dtype, rows, width), CONFIGS, launch))
    return dh, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype)


@gelu_norm_backward.register_fake
def _(dz1, dz2, h, weight, mean, scale):
    return h.new_empty(h.shape), torch.empty_like(weight), torch.empty_like(weight)


def _setup(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    h, weight, _, _ = inputs
    ctx.save_for_backward(h, weight, *output[2:])


def _grads(ctx, dz1, dz2, *_):
    h, weight, mean, scale = ctx.saved_tensors
    if dz1 is None and dz2 is None:
        return None, None, None, None
    dz1 = torch.zeros_like(dz2) if dz1 is None else dz1
    dz2 = torch.zeros_like(dz1) if dz2 is None else dz2
    return *torch.ops.tokenmix.gelu_norm_backward(dz1, dz2, h, weight, mean, scale), None


gelu_norm_op.register_autograd(_grads, setup_context=_setup)
once(gelu_norm_backward)


def fused_gelu_norm(h: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See :func:`tokenmix.ops.norm.gelu_norm`."""
    return torch.ops.tokenmix.gelu_norm(h, weight, bias, eps)[:2]
