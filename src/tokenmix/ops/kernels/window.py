"""A two-layer network over a window of tokens whose hidden values stay in registers, forward and backward.

y[t] = Σ_h a_h gelu(z_h[t]),  z_h[t] = Σ_s W[h, s] x[t − s] + b_h             in each channel
dz_h = dy a_h gelu'(z_h),  dx[i] = Σ_{h, s} W[h, s] dz_h[i + s]
dW[h, s] = Σ dz_h[t] x[t − s],  db_h = Σ dz_h,  da_h = Σ dy gelu(z_h)          over examples, tokens and channels

No window is copied. The tokens of a block, T ≥ window − 1 of them, see two blocks of the rows of x: x₀ from the first
token's oldest row on, and x₁ after it. W is a band matrix over them, B[(h, t), i] = W[h, t + window − 1 − i] with the
columns i of B₀ and, after them, those of B₁:

    z = B₀ x₀ + B₁ x₁ + b,   dx₀ = B₀ᵀ dz,  dx₁ = B₁ᵀ dz,   dB₀ = dz x₀ᵀ,  dB₁ = dz x₁ᵀ;   dW sums diagonals of dB

On the way back a program walks along an example: its x₁ and dx₁ are the x₀ and dx₀ of the next block. It keeps the sums
dB, db and da of up to ROWS / T hidden units; of more units every group has programs of its own, and dx, which needs them
all, is made by a second kernel. What the kernels wait for is gelu: memory sees x, dy, y and dx once each.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmix.ops.kernels.gelu import cdf, slope
from tokenmix.ops.kernels.tune import Config, choose, precision, processors
from tokenmix.ops.once import once

ROWS = {
    torch.bfloat16: 256,
    torch.float16: 256,
    torch.float32: 64,
}  # of B on the way back; exact products need registers


@triton.jit
def _band(w, h, t, i, hidden, window):
    """B[(h, t), i] = W[h, t + window − 1 − i]."""
    s = t + window - 1 - i
    return tl.load(w + h * window + s, mask=(h < hidden) & (s >= 0) & (s < window), other=0.0)


@triton.jit
def _read(x, first, c, st, sc, rows, channels, T: tl.constexpr):
    """Rows first … first + T of an example at the channels c; 0 outside."""
    i = first + tl.arange(0, T)
    real = (i < rows)[:, None] & (c < channels)[None, :]
    return tl.load(x + i.to(tl.int64)[:, None] * st + c.to(tl.int64)[None, :] * sc, mask=real, other=0.0)


@triton.jit
def _write(y, v, first, c, rows, channels, T: tl.constexpr):
    """Rows first … first + T of y [rows, channels] at the channels c."""
    i = first + tl.arange(0, T)
    place = y + i.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(place, v.to(y.dtype.element_ty), mask=(i < rows)[:, None] & (c < channels)[None, :])


@triton.jit
def _forward(
    x, w, b, a, y, sxb, sxt, sxc, length, channels, hidden, window,
    NARROW: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    columns, blocks = tl.cdiv(channels, BC), tl.cdiv(length, T)
    c = tl.program_id(0) % columns * BC + tl.arange(0, BC)
    t0 = tl.program_id(0) // columns % blocks * T
    example = (tl.program_id(0) // columns // blocks).to(tl.int64)
    x0 = _read(x + example * sxb, t0, c, sxt, sxc, length + window - 1, channels, T)
    x1 = _read(x + example * sxb, t0 + T, c, sxt, sxc, length + window - 1, channels, T)
    t, i = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    total = tl.zeros((T, BC), tl.float32)
    for h in range(hidden):
        z = tl.dot(_band(w, h, t, i, hidden, window).to(x0.dtype), x0, input_precision=PRECISION)
        z = tl.dot(_band(w, h, t, T + i, hidden, window).to(x0.dtype), x1, z, input_precision=PRECISION)
        z += tl.load(b + h).to(tl.float32)
        total += tl.load(a + h).to(tl.float32) * (z * cdf(z, NARROW))
    _write(y + example * length * channels, total, t0, c, length, channels, T)


@triton.jit
def _weights(w, b, a, first, hidden, window, dtype: tl.constexpr, T: tl.constexpr, H: tl.constexpr):
    """B₀ and B₁ [H · T, T], b and a [H · T, 1] of H hidden units."""
    r = tl.arange(0, H * T)[:, None]
    h, t, i = first + r // T, r % T, tl.arange(0, T)[None, :]
    b0 = _band(w, h, t, i, hidden, window).to(dtype)
    b1 = _band(w, h, t, T + i, hidden, window).to(dtype)
    bias = tl.load(b + h, mask=h < hidden, other=0.0).to(tl.float32)
    return b0, b1, bias, tl.load(a + h, mask=h < hidden, other=0.0).to(tl.float32)


@triton.jit
def _gradients(
    dy, b0, b1, bias, gain, x0, x1, NARROW: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """dz and dy gelu(z), both [H · T, BC], of dy [T, BC]."""
    dy = tl.broadcast_to(dy[None, :, :], (H, T, dy.shape[1])).reshape(H * T, dy.shape[1]).to(tl.float32)
    z = tl.dot(b0, x0, input_precision=PRECISION)
    z = tl.dot(b1, x1, z, input_precision=PRECISION) + bias
    p = cdf(z, NARROW)
    return dy * gain * slope(z, p), dy * (z * p)


@triton.jit
def _backward(
    dy, x, w, b, a, dx, dw, db, da, sgb, sgt, sgc, sxb, sxt, sxc, items, length, channels, hidden, window,
    DX: tl.constexpr, NARROW: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr, H: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Sums of dB, db and da over every num_programs(0)-th item, an example's channel block; DX: hidden ≤ H, dx as well."""
    rows, columns = length + window - 1, tl.cdiv(channels, BC)
    b0, b1, bias, gain = _weights(w, b, a, tl.program_id(1) * H, hidden, window, x.dtype.element_ty, T, H)
    sum_0, sum_1 = tl.zeros((H * T, T), tl.float32), tl.zeros((H * T, T), tl.float32)
    sum_b, sum_a = tl.zeros((H * T,), tl.float32), tl.zeros((H * T,), tl.float32)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        example = (item // columns).to(tl.int64)
        c = item % columns * BC + tl.arange(0, BC)
        x0 = _read(x + example * sxb, 0, c, sxt, sxc, rows, channels, T)
        dx0 = tl.zeros((T, BC), tl.float32)
        for t0 in range(0, length, T):
            x1 = _read(x + example * sxb, t0 + T, c, sxt, sxc, rows, channels, T)
            g = _read(dy + example * sgb, t0, c, sgt, sgc, length, channels, T)
            dz, part_a = _gradients(g, b0, b1, bias, gain, x0, x1, NARROW, PRECISION, T, H)
            sum_a += tl.sum(part_a, 1)
            sum_b += tl.sum(dz, 1)
            dz = dz.to(x0.dtype)
            sum_0 = tl.dot(dz, tl.trans(x0), sum_0, input_precision=PRECISION)
            sum_1 = tl.dot(dz, tl.trans(x1), sum_1, input_precision=PRECISION)
            if DX:
                dx0 = tl.dot(tl.trans(b0), dz, dx0, input_precision=PRECISION)
                _write(dx + example * rows * channels, dx0, t0, c, rows, channels, T)
                dx0 = tl.dot(tl.trans(b1), dz, input_precision=PRECISION)
            x0 = x1
        if DX:
            _write(dx + example * rows * channels, dx0, tl.cdiv(length, T) * T, c, rows, channels, T)
    r, i = tl.arange(0, H * T), tl.arange(0, T)[None, :]
    real = tl.program_id(1) * H + r // T < hidden
    place = tl.program_id(0).to(tl.int64) * hidden * T + tl.program_id(1) * H * T + r
    corner = dw + place[:, None] * 2 * T
    tl.store(
        corner + 2 * T - 1 - i, sum_0, mask=real[:, None]
    )  # columns from the last to the first: s grows along a row
    tl.store(corner + T - 1 - i, sum_1, mask=real[:, None])
    tl.store(db + place, sum_b, mask=real)
    tl.store(da + place, sum_a, mask=real)


@triton.jit
def _backward_x(
    dy, x, w, b, a, dx, sgb, sgt, sgc, sxb, sxt, sxc, length, channels, hidden, window,
    NARROW: tl.constexpr, PRECISION: tl.constexpr, T: tl.constexpr, H: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx of more hidden units than one program of `_backward` keeps."""
    rows, columns = length + window - 1, tl.cdiv(channels, BC)
    example = (tl.program_id(0) // columns).to(tl.int64)
    c = tl.program_id(0) % columns * BC + tl.arange(0, BC)
    x0 = _read(x + example * sxb, 0, c, sxt, sxc, rows, channels, T)
    dx0 = tl.zeros((T, BC), tl.float32)
    for t0 in range(0, length, T):
        x1 = _read(x + example * sxb, t0 + T, c, sxt, sxc, rows, channels, T)
        g = _read(dy + example * sgb, t0, c, sgt, sgc, length, channels, T)
        dx1 = tl.zeros((T, BC), tl.float32)
        for first in range(0, hidden, H):
            b0, b1, bias, gain = _weights(w, b, a, first, hidden, window, x.dtype.element_ty, T, H)
            dz, _ = _gradients(g, b0, b1, bias, gain, x0, x1, NARROW, PRECISION, T, H)
            dz = dz.to(x0.dtype)
            dx0 = tl.dot(tl.trans(b0), dz, dx0, input_precision=PRECISION)
            dx1 = tl.dot(tl.trans(b1), dz, dx1, input_precision=PRECISION)
        _write(dx + example * rows * channels, dx0, t0, c, rows, channels, T)
        x0, dx0 = x1, dx1
    _write(dx + example * rows * channels, dx0, tl.cdiv(length, T) * T, c, rows, channels, T)


FORWARD: list[Config] = [
    {"BC": 256, "num_warps": 4},
    {"BC": 256, "num_warps": 8},
    {"BC": 128, "num_warps": 4},
]
BACKWARD: list[Config] = [
    {"BC": 32, "num_warps": 8, "num_stages": 1},
    {"BC": 32, "num_warps": 8, "num_stages": 1, "maxnreg": 128},
    {"BC": 64, "num_warps": 8, "num_stages": 1},
]


def _shape(x: Tensor, w: Tensor) -> tuple[int, int, int, int, int]:
    """Batch, length, channels, hidden, window."""
    return x.shape[0], x.shape[1] - w.shape[1] + 1, x.shape[2], w.shape[0], w.shape[1]


def _options(x: Tensor, window: int) -> dict[str, Any]:
    block = max(16, triton.next_power_of_2(window - 1))
    return {"NARROW": x.dtype != torch.float32, "PRECISION": precision(x.dtype), "T": block}


@torch.library.custom_op("tokenmix::fused_window_mlp", mutates_args=())
def fused_window_mlp(x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """See :func:`tokenmix.ops.window.window_mlp`."""
    shape = batch, length, channels, hidden, window = _shape(x, w)
    w, b, a = w.contiguous(), b.contiguous(), a.contiguous()
    y = x.new_empty(batch, length, channels)
    options = _options(x, window)

    def launch(config: Config) -> tuple[Tensor]:
        grid = (batch * triton.cdiv(length, options["T"]) * triton.cdiv(channels, config["BC"]),)
        _forward[grid](x, w, b, a, y, *x.stride(), length, channels, hidden, window, **options, **config)
        return (y,)

    return launch(choose("window_mlp", (x.dtype, *shape), FORWARD, launch))[0]


@fused_window_mlp.register_fake
def _(x, w, b, a):
    return x.new_empty(x.shape[0], x.shape[1] - w.shape[1] + 1, x.shape[2])


@torch.library.custom_op("tokenmix::fused_window_mlp_backward", mutates_args=())
def fused_window_mlp_backward(
    dy: Tensor, x: Tensor, w: Tensor, b: Tensor, a: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w, b and a; the last three are summed in float32, in the same order every time."""
    shape = batch, length, channels, hidden, window = _shape(x, w)
    w, b, a = w.contiguous(), b.contiguous(), a.contiguous()
    dx = x.new_empty(x.shape)
    options = _options(x, window)
    block = options["T"]
    units = min(triton.next_power_of_2(hidden), max(1, ROWS[x.dtype] // block))
    groups = triton.cdiv(hidden, units)
    sizes = (*dy.stride(), *x.stride())

    def launch(config: Config) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        items = batch * triton.cdiv(channels, config["BC"])
        programs = min(items, max(1, 2 * processors() // groups))
        dw = x.new_empty(programs, hidden, block, 2 * block, dtype=torch.float32)
        db, da = (x.new_empty(programs, hidden, block, dtype=torch.float32) for _ in range(2))
        _backward[(programs, groups)](
            dy, x, w, b, a, dx, dw, db, da, *sizes, items, length, channels, hidden, window,
            DX=groups == 1, H=units, **options, **config,
        )  # fmt: skip
        if groups > 1:
            _backward_x[(items,)](
                dy, x, w, b, a, dx, *sizes, length, channels, hidden, window, H=units, **options, **config
            )  # fmt: skip
        return dx, dw.sum(0), db.sum((0, 2)), da.sum((0, 2))

    dx, dw, db, da = launch(choose("window_mlp_backward", (x.dtype, *shape), BACKWARD, launch))
    steps = (2 * block * block, 2 * block - 1, 1)  # dW[h, s] = Σ_t dB[(h, t), t + window − 1 − s]
    diagonals = dw.as_strided((hidden, block, window), steps, 2 * block - window)
    return dx, diagonals.sum(1).to(w.dtype), db.to(b.dtype), da.to(a.dtype)


@fused_window_mlp_backward.register_fake
def _(dy, x, w, b, a):
    return x.new_empty(x.shape), w.new_empty(w.shape), b.new_empty(b.shape), a.new_empty(a.shape)


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


fused_window_mlp.register_autograd(
    lambda ctx, dy: fused_window_mlp_backward(dy, *ctx.saved_tensors), setup_context=_remember
)
once(fused_window_mlp_backward)
