"""gelu of both halves of a row and the norm of the second, forward and backward, each in one pass over memory.

z₁ = gelu(a),  z₂ = norm(g) w + b,  g = gelu(c)                     of a row h = [a, c]
da = dz₁ gelu'(a),  dc = dg gelu'(c),  dg = r (dx − mean(dx) − x̂ mean(dx x̂)),  dx = w dz₂,  x̂ = (g − mean(g)) r
dw = Σ dz₂ x̂,  db = Σ dz₂,  dv = Σ [da, dc]                         over all rows, of h = x Uᵀ + v

v, the bias of the linear layer before, is already in h: the operators take it only to give it its gradient, which would
cost another pass over dh.

A program holds R whole rows at a time, in pieces: tuples of power-of-two tiles [R, BLOCK], 3 of 256 columns for rows of
768, which one tile would pad to 1024. It takes every num_programs(0)-th block of rows, and keeps its sums over them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"
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
def _read(x, i, rows, STRIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """WIDTH columns of the rows i as a tuple of pieces [R, BLOCK]; 0 outside."""
    d = tl.arange(0, BLOCK)
    pieces = ()
    for first in tl.static_range(0, WIDTH, BLOCK):
        inside = (i < rows)[:, None] & (first + d < WIDTH)[None, :]
        place = x + i.to(tl.int64)[:, None] * STRIDE + (first + d)[None, :]
        pieces += (tl.load(place, mask=inside, other=0.0).to(tl.float32),)
    return pieces


@triton.jit
def _write(x, pieces, i, rows, STRIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The same columns of the rows i, from pieces."""
    d = tl.arange(0, BLOCK)
    for first in tl.static_range(0, WIDTH, BLOCK):
        inside = (i < rows)[:, None] & (first + d < WIDTH)[None, :]
        place = x + i.to(tl.int64)[:, None] * STRIDE + (first + d)[None, :]
        tl.store(place, pieces[first // BLOCK].to(x.dtype.element_ty), mask=inside)


@triton.jit
def _read_vector(x, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A vector as a tuple of pieces [1, BLOCK]."""
    d = tl.arange(0, BLOCK)
    pieces = ()
    for first in tl.static_range(0, WIDTH, BLOCK):
        pieces += (tl.load(x + first + d, mask=first + d < WIDTH, other=0.0).to(tl.float32)[None, :],)
    return pieces


@triton.jit
def _write_sum(x, pieces, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the rows of pieces, as a vector."""
    d = tl.arange(0, BLOCK)
    for first in tl.static_range(0, WIDTH, BLOCK):
        tl.store(x + first + d, tl.sum(pieces[first // BLOCK], 0), mask=first + d < WIDTH)


@triton.jit
def _zeros(WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    pieces = ()
    for _ in tl.static_range(0, WIDTH, BLOCK):
        pieces += (tl.zeros((R, BLOCK), tl.float32),)
    return pieces


@triton.jit
def _add(left, right):
    pieces = ()
    for k in tl.static_range(len(left)):
        pieces += (left[k] + right[k],)
    return pieces


@triton.jit
def _mean(pieces, WIDTH: tl.constexpr):
    """The mean of each row, [R, 1]."""
    total = pieces[0]
    for k in tl.static_range(1, len(pieces)):
        total += pieces[k]
    return (tl.sum(total, 1) / WIDTH)[:, None]


@triton.jit
def _forward(
    h, w, b, z1, z2, mean, r, rows, blocks, eps,
    NARROW: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)[None, :]
    gain, shift = _read_vector(w, WIDTH, BLOCK), _read_vector(b, WIDTH, BLOCK)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        i = block * R + tl.arange(0, R)
        a = _read(h, i, rows, 2 * WIDTH, WIDTH, BLOCK)
        c = _read(h + WIDTH, i, rows, 2 * WIDTH, WIDTH, BLOCK)
        first, g = (), ()
        for k in tl.static_range(len(a)):
            first += (a[k] * cdf(a[k], NARROW),)
            g += (c[k] * cdf(c[k], NARROW),)
        _write(z1, first, i, rows, WIDTH, WIDTH, BLOCK)
        m = _mean(g, WIDTH)
        centred, squares, second = (), (), ()
        for k in tl.static_range(len(g)):
            centred += (tl.where(k * BLOCK + d < WIDTH, g[k] - m, 0.0),)
            squares += (centred[k] * centred[k],)
        scale = tl.rsqrt(_mean(squares, WIDTH) + eps)
        for k in tl.static_range(len(g)):
            second += (centred[k] * scale * gain[k] + shift[k],)
        _write(z2, second, i, rows, WIDTH, WIDTH, BLOCK)
        _write(mean, (m,), i, rows, 1, 1, 1)
        _write(r, (scale,), i, rows, 1, 1, 1)


@triton.jit
def _backward(
    dz1, dz2, h, w, mean, r, dh, sums, rows, blocks,
    NARROW: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dh, and of a program's rows the sums of da, dc, dw = dz₂ x̂ and db = dz₂."""
    gain = _read_vector(w, WIDTH, BLOCK)
    sum_a, sum_c = _zeros(WIDTH, R, BLOCK), _zeros(WIDTH, R, BLOCK)
    sum_w, sum_b = _zeros(WIDTH, R, BLOCK), _zeros(WIDTH, R, BLOCK)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        i = block * R + tl.arange(0, R)
        a = _read(h, i, rows, 2 * WIDTH, WIDTH, BLOCK)
        first = _read(dz1, i, rows, WIDTH, WIDTH, BLOCK)
        c = _read(h + WIDTH, i, rows, 2 * WIDTH, WIDTH, BLOCK)
        second = _read(dz2, i, rows, WIDTH, WIDTH, BLOCK)
        m, scale = _read(mean, i, rows, 1, 1, 1)[0], _read(r, i, rows, 1, 1, 1)[0]
        da = ()  # = dz₁ gelu'(a)
        for k in tl.static_range(len(a)):
            da += (first[k] * slope(a[k], cdf(a[k], NARROW)),)
        _write(dh, da, i, rows, 2 * WIDTH, WIDTH, BLOCK)
        x, dx, dxx, dw, slopes, dc = (), (), (), (), (), ()
        for k in tl.static_range(len(c)):
            p = cdf(c[k], NARROW)  # g = c p
            x += ((c[k] * p - m) * scale,)
            dx += (second[k] * gain[k],)
            dxx += (dx[k] * x[k],)
            dw += (second[k] * x[k],)
            slopes += (slope(c[k], p),)
        # dc = dg gelu'(c),  dg = r dx − r mean(dx) − x̂ r mean(dx x̂)
        mean_dx, mean_dxx = scale * _mean(dx, WIDTH), scale * _mean(dxx, WIDTH)
        for k in tl.static_range(len(c)):
            dc += (slopes[k] * (scale * dx[k] - mean_dx - x[k] * mean_dxx),)
        _write(dh + WIDTH, dc, i, rows, 2 * WIDTH, WIDTH, BLOCK)
        sum_a, sum_c, sum_w, sum_b = _add(sum_a, da), _add(sum_c, dc), _add(sum_w, dw), _add(sum_b, second)
    sums += tl.program_id(0) * 4 * WIDTH
    _write_sum(sums, sum_a, WIDTH, BLOCK)
    _write_sum(sums + WIDTH, sum_c, WIDTH, BLOCK)
    _write_sum(sums + 2 * WIDTH, sum_w, WIDTH, BLOCK)
    _write_sum(sums + 3 * WIDTH, sum_b, WIDTH, BLOCK)


FORWARD: list[Config] = [  # numbers of half a row that a thread holds, and programs on a multiprocessor
    {"share": 16, "programs": 8},
    {"share": 16, "programs": 6},
    {"share": 16, "programs": 4},
    {"share": 32, "programs": 4},
    {"share": 32, "programs": 3},
]
BACKWARD: list[Config] = [
    {"share": 16, "programs": 4},
    {"share": 16, "programs": 3},
    {"share": 16, "programs": 2},
    {"share": 32, "programs": 2},
    {"share": 8, "programs": 4},
]


def _block(width: int) -> int:
    """The power of two, at least 8, of which up to seven pieces cover a row of this width with the least padding."""
    blocks = {max(8, triton.next_power_of_2(triton.cdiv(width, pieces))) for pieces in range(1, 8)}
    return min(blocks, key=lambda block: (triton.cdiv(width, block) * block, -block))


def constants(config: Config, h: Tensor) -> dict[str, Any]:
    """What is constant in a kernel for h, as a launch takes it."""
    width = h.shape[-1] // 2
    threads = triton.cdiv(triton.next_power_of_2(width), config["share"])  # of a row
    warps = max(4, threads // 32)
    tile = {"R": 32 * warps // threads, "BLOCK": _block(width), "WIDTH": width, "num_warps": warps}
    return {**tile, "NARROW": h.dtype != torch.float32}


def _grid(config: Config, rows: int, R: int) -> tuple[int, int]:
    """Programs, and the blocks of R rows that they share."""
    blocks = triton.cdiv(rows, R)
    return min(blocks, config["programs"] * processors()), blocks


def forward(
    h: Tensor, weight: Tensor, bias: Tensor, eps: float, configs: list[Config]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(z₁, z₂, mean, 1/deviation) of h [..., 2 · width]; the statistics are [rows] in float32."""
    h = h.contiguous()
    width, rows = h.shape[-1] // 2, h.shape[:-1].numel()
    z1, z2 = (h.new_empty(*h.shape[:-1], width) for _ in range(2))
    mean, scale = (h.new_empty(rows, dtype=torch.float32) for _ in range(2))

    def launch(config: Config) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tile = constants(config, h)
        programs, blocks = _grid(config, rows, tile["R"])
        _forward[(programs,)](h, weight, bias, z1, z2, mean, scale, rows, blocks, eps, **tile)
        return z1, z2, mean, scale

    return launch(choose("gelu_norm", (h.dtype, rows, width), configs, launch))


def backward(
    dz1: Tensor, dz2: Tensor, h: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, configs: list[Config]
) -> tuple[Tensor, Tensor]:
    """The gradient of h, and in float32 those of linear_bias, weight and bias, one after the other."""
    dz1, dz2, h = dz1.contiguous(), dz2.contiguous(), h.contiguous()
    width, rows = h.shape[-1] // 2, h.shape[:-1].numel()
    dh = torch.empty_like(h)

    def launch(config: Config) -> tuple[Tensor, Tensor]:
        tile = constants(config, h)
        programs, blocks = _grid(config, rows, tile["R"])
        sums = h.new_empty(programs, 4 * width, dtype=torch.float32)
        _backward[(programs,)](dz1, dz2, h, weight, mean, scale, dh, sums, rows, blocks, **tile)
        return dh, sums.sum(0)

    return launch(choose("gelu_norm_backward", (h.dtype, rows, width), configs, launch))


@torch.library.custom_op("tokenmix::gelu_norm", mutates_args=())
def gelu_norm_op(
    h: Tensor, linear_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`forward`, on the way back from which linear_bias gets its gradient."""
    return forward(h, weight, bias, eps, FORWARD)


@gelu_norm_op.register_fake
def _(h, linear_bias, weight, bias, eps):
    half = (*h.shape[:-1], h.shape[-1] // 2)
    rows = h.shape[:-1].numel()
    return h.new_empty(half), h.new_empty(half), *(h.new_empty(rows, dtype=torch.float32) for _ in range(2))


@torch.library.custom_op("tokenmix::gelu_norm_backward", mutates_args=())
def gelu_norm_backward(
    dz1: Tensor, dz2: Tensor, h: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """`backward`."""
    return backward(dz1, dz2, h, weight, mean, scale, BACKWARD)


@gelu_norm_backward.register_fake
def _(dz1, dz2, h, weight, mean, scale):
    return h.new_empty(h.shape), h.new_empty(2 * h.shape[-1], dtype=torch.float32)


def _setup(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    h, linear_bias, weight, _, _ = inputs
    ctx.linear = None if linear_bias is None else linear_bias.dtype
    ctx.save_for_backward(h, weight, *output[2:])


def _grads(ctx, dz1, dz2, *_):
    h, weight, mean, scale = ctx.saved_tensors
    if dz1 is None and dz2 is None:
        return None, None, None, None, None
    dz1 = torch.zeros_like(dz2) if dz1 is None else dz1
    dz2 = torch.zeros_like(dz1) if dz2 is None else dz2
    dh, sums = torch.ops.tokenmix.gelu_norm_backward(dz1, dz2, h, weight, mean, scale)
    width = h.shape[-1] // 2
    dv, dw, db = sums.split([2 * width, width, width])
    return dh, None if ctx.linear is None else dv.to(ctx.linear), dw.to(weight.dtype), db.to(weight.dtype), None


gelu_norm_op.register_autograd(_grads, setup_context=_setup)
once(gelu_norm_backward)


def fused_gelu_norm(
    h: Tensor, linear_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See :func:`tokenmix.ops.norm.gelu_norm`; h holds linear_bias, detached, whose gradient is made here."""
    return torch.ops.tokenmix.gelu_norm(h, linear_bias, weight, bias, eps)[:2]
