"""Triton kernels of a decoding step: few rows, so what counts is the number of launches and the bytes of weights and keys.

Three of them make a Transformer layer of 8 launches instead of some 40. They run under `TRITON_INTERPRET=1` on a CPU too,
which is how the tests compare them with plain torch.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _linear(
    x, w, squares, residual, out, sums, M, N, K, parts, eps,
    NORM: tl.constexpr, GATE: tl.constexpr, RESIDUAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """out[m, n] = Σ_k x[m, k] w[n, k], of x's RMS norm (gains are folded into w), gated or added to a residual."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    inside_m, inside_n = m < M, n < N
    m64, n64 = m.to(tl.int64), n.to(tl.int64)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    gated = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        inside_k = k < K
        part = tl.load(x + m64[:, None] * K + k[None, :], mask=inside_m[:, None] & inside_k[None, :], other=0.0)
        block = inside_n[:, None] & inside_k[None, :]
        weight = tl.load(w + n64[:, None] * K + k[None, :], mask=block, other=0.0)
        total = tl.dot(part, tl.trans(weight), total, input_precision="ieee")
        if GATE:
            second = tl.load(w + (N + n64)[:, None] * K + k[None, :], mask=block, other=0.0)
            gated = tl.dot(part, tl.trans(second), gated, input_precision="ieee")
    if NORM:  # a row's norm is a factor that can come after the product
        p = tl.arange(0, BP)
        shares = tl.load(
            squares + m64[:, None] * parts + p[None, :], mask=inside_m[:, None] & (p < parts)[None, :], other=0.0
        )
        scale = 1.0 / tl.sqrt(tl.sum(shares, 1) / K + eps)
        total *= scale[:, None]
        gated *= scale[:, None]
    if GATE:  # gelu in its tanh form; tanh(u) = 1 − 2 / (e^{2u} + 1)
        u = 0.7978845608028654 * (total + 0.044715 * total * total * total)
        total = total * (1.0 - 1.0 / (tl.exp(2.0 * u) + 1.0)) * gated
    at = m64[:, None] * N + n[None, :]
    inside = inside_m[:, None] & inside_n[None, :]
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        rounded = total.to(out.dtype.element_ty).to(tl.float32)
        tl.store(sums + m64 * tl.num_programs(0) + tl.program_id(0), tl.sum(rounded * rounded, 1), mask=inside_m)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def linear(
    x: Tensor,
    w: Tensor,
    *,
    squares: Tensor | None = None,
    eps: float = 0.0,
    gate: bool = False,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [rows, K] times w [N, K], and the squares of the result summed by parts, [rows, parts], for the next norm.

    With `squares` (those of x) after x's RMS norm; with `gate` gelu(first half) ⊙ second half; plus a residual. The sums
    come with a residual alone.
    """
    rows, width = x.shape
    outputs = w.shape[0] // 2 if gate else w.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    bm, bn, bk, warps, stages = tiles(rows, outputs, width, x.element_size())
    grid = (triton.cdiv(outputs, bn), triton.cdiv(rows, bm))
    sums = torch.empty(rows, grid[0], dtype=torch.float32, device=x.device) if residual is not None else out
    parts = 1 if squares is None else squares.shape[1]
    _linear[grid](
        x, w, x if squares is None else squares, x if residual is None else residual, out, sums, rows, outputs, width, parts,
        eps, NORM=squares is not None, GATE=gate, RESIDUAL=residual is not None, BM=bm, BN=bn, BK=bk,
        BP=triton.next_power_of_2(parts), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, sums


@triton.jit
def _squares(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(value * value, 0))


def squares(x: Tensor) -> Tensor:
    """Σ x² of each row of x [rows, width]: [rows, 1]."""
    out = torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)
    _squares[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def tiles(rows: int, outputs: int, width: int, size: int) -> tuple[int, int, int, int, int]:
    """Tile sizes, warps and stages: enough programs for all processors, as few reads of x as that allows."""
    if size > 2:  # float32
        return (16 if rows <= 16 else 32), 32, 64, 4, 2
    if rows <= 16:
        return 16, 16, 256, 4, 3
    if rows <= 32:
        return 32, 16, 128, 4, 4
    if rows <= 64:
        return 64, 32 if outputs > 2048 else 16, 128, 4, 4
    return 64, 64 if outputs >= 1536 else 32, 128, 4, 3


@triton.jit
def _attend_new(
    qkv, keys, values, bias, source, positions, ended, out, scale, capacity,
    WIDTH: tl.constexpr, D: tl.constexpr, BEAMS: tl.constexpr,
    BIAS: tl.constexpr, SOURCE: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Attention of one new token over its past and itself; its key and value are written down on the way."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if tl.load(ended + row // BEAMS) == 0:
        here = tl.minimum(tl.load(positions + row), capacity - 1)
        d = tl.arange(0, BD)
        inside = d < D
        at = head * D + d
        q = tl.load(qkv + row * 3 * WIDTH + at, mask=inside, other=0.0).to(tl.float32) * scale
        k = tl.load(qkv + row * 3 * WIDTH + WIDTH + at, mask=inside, other=0.0)
        v = tl.load(qkv + row * 3 * WIDTH + 2 * WIDTH + at, mask=inside, other=0.0)
        tl.store(keys + (row * capacity + here) * WIDTH + at, k, mask=inside)
        tl.store(values + (row * capacity + here) * WIDTH + at, v, mask=inside)
        highest = tl.sum(q * k.to(tl.float32), 0)
        if BIAS:
            highest += tl.load(bias + head * capacity).to(tl.float32)
        weight = 1.0
        mixed = v.to(tl.float32)
        for start in range(0, here, BJ):
            j = start + tl.arange(0, BJ)
            seen = j < here
            if SOURCE:
                place = tl.load(source + row * capacity + j, mask=seen, other=0) * capacity + j
            else:
                place = row * capacity + j
            block = seen[:, None] & inside[None, :]
            past = tl.load(keys + place[:, None] * WIDTH + at[None, :], mask=block, other=0.0).to(tl.float32)
            logits = tl.sum(past * q[None, :], 1)
            if BIAS:
                logits += tl.load(bias + head * capacity + here - j, mask=seen, other=0.0).to(tl.float32)
            logits = tl.where(seen, logits, float("-inf"))
            higher = tl.maximum(highest, tl.max(logits, 0))
            fade = tl.exp(highest - higher)
            share = tl.exp(logits - higher)
            past = tl.load(values + place[:, None] * WIDTH + at[None, :], mask=block, other=0.0).to(tl.float32)
            mixed = mixed * fade + tl.sum(past * share[:, None], 0)
            weight = weight * fade + tl.sum(share, 0)
            highest = higher
        tl.store(out + row * WIDTH + at, (mixed / weight).to(out.dtype.element_ty), mask=inside)
    else:  # a number, at least: nobody reads it, but 0 times what is none is none
        e = tl.arange(0, BD)
        tl.store(out + row * WIDTH + head * D + e, tl.zeros((BD,), out.dtype.element_ty), mask=e < D)


def attend_new(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    ended: Tensor,
    *,
    heads: int,
    scale: float,
    bias: Tensor | None,
    source: Tensor | None,
) -> Tensor:
    """The new tokens' qkv [rows, 3·width] over keys and values [rows, capacity, width]; bias [heads, distance]."""
    rows, capacity, width = keys.shape
    size = width // heads
    out = torch.empty(rows, width, dtype=qkv.dtype, device=qkv.device)
    _attend_new[(rows, heads)](
        qkv, keys, values, keys if bias is None else bias, positions if source is None else source, positions, ended, out,
        scale, capacity, WIDTH=width, D=size, BEAMS=rows // ended.shape[0], BIAS=bias is not None, SOURCE=source is not None,
        BD=triton.next_power_of_2(size), BJ=32, num_warps=2, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _attend_memory(
    queries, memory, lengths, ended, out, scale, length, WIDTH: tl.constexpr, D: tl.constexpr, BEAMS: tl.constexpr,
    BQ: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Attention of an example's beams, as so many queries, over the keys and values of its one memory."""
    example = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if tl.load(ended + example) == 0:
        count = tl.load(lengths + example)
        d = tl.arange(0, BD)
        i = tl.arange(0, BQ)
        at = head * D + d
        asks = (i < BEAMS)[:, None] & (d < D)[None, :]
        rows = (example * BEAMS + i)[:, None] * WIDTH + at[None, :]
        q = tl.load(queries + rows, mask=asks, other=0.0)
        highest = tl.full((BQ,), -1e30, dtype=tl.float32)
        weight = tl.zeros((BQ,), dtype=tl.float32)
        mixed = tl.zeros((BQ, BD), dtype=tl.float32)
        for start in range(0, count, BJ):
            j = start + tl.arange(0, BJ)
            place = (example * length + j)[:, None] * (2 * WIDTH) + at[None, :]
            block = (j < count)[:, None] & (d < D)[None, :]
            k = tl.load(memory + place, mask=block, other=0.0)
            v = tl.load(memory + place + WIDTH, mask=block, other=0.0)
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            logits = tl.where((j < count)[None, :], logits, float("-inf"))
            higher = tl.maximum(highest, tl.max(logits, 1))
            fade = tl.exp(highest - higher)
            share = tl.exp(logits - higher[:, None])
            mixed = tl.dot(share.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
            weight = weight * fade + tl.sum(share, 1)
            highest = higher
        weight = tl.where(weight > 0, weight, 1.0)  # an empty memory gives 0
        tl.store(out + rows, (mixed / weight[:, None]).to(out.dtype.element_ty), mask=asks)
    else:
        m = tl.arange(0, BQ)
        e = tl.arange(0, BD)
        places = (example * BEAMS + m)[:, None] * WIDTH + (head * D + e)[None, :]
        nothing = tl.zeros((BQ, BD), out.dtype.element_ty)
        tl.store(out + places, nothing, mask=(m < BEAMS)[:, None] & (e < D)[None, :])


def attend_memory(
    queries: Tensor, memory: Tensor, lengths: Tensor, ended: Tensor, *, heads: int, scale: float
) -> Tensor:
    """queries [examples · beams, width] over memory [examples, length, keys and values], `lengths` of which are real."""
    examples, length, both = memory.shape
    width = both // 2
    size, beams = width // heads, queries.shape[0] // examples
    out = torch.empty_like(queries)
    _attend_memory[(examples, heads)](
        queries, memory, lengths, ended, out, scale, length, WIDTH=width, D=size, BEAMS=beams,
        BQ=max(16, triton.next_power_of_2(beams)), BD=max(16, triton.next_power_of_2(size)), BJ=64,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _rms_norm(x, gain, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    value = value / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    value *= tl.load(gain + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=at < width)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / √(mean x² + ε) ⊙ gain over the last dimension."""
    x = x.contiguous()
    width, out = x.shape[-1], torch.empty_like(x)
    block = triton.next_power_of_2(width)
    warps = 4 if block <= 2048 else 8
    _rms_norm[(x.numel() // width,)](x, gain, out, width, eps, BLOCK=block, num_warps=warps)
    return out


@triton.jit
def _gated(a, b, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at, mask=at < size, other=0.0).to(tl.float32)
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    y = x * (1.0 - 1.0 / (tl.exp(2.0 * u) + 1.0)) * tl.load(b + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=at < size)


def gated(a: Tensor, b: Tensor) -> Tensor:
    """gelu(a) ⊙ b in one pass, written over a."""
    _gated[(triton.cdiv(a.numel(), 4096),)](a, b, a, a.numel(), BLOCK=4096, num_warps=8)
    return a


@triton.jit
def _choose(
    logits, rows, tokens, count, room, ended, sequences, lengths, marks, how_many, size, longest, pad, BLOCK: tl.constexpr
):  # fmt: skip
    """Greedy search's choice: the likeliest token of a row, where it goes, and whether the row ends."""
    row = tl.program_id(0).to(tl.int64)
    highest = float("-inf")
    token = 0
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * size + at, mask=at < size, other=float("-inf")).to(tl.float32)
        top = tl.max(value, 0)
        token = tl.where(top > highest, start + tl.argmax(value, 0), token)
        highest = tl.maximum(highest, top)
    example = tl.load(rows + row)
    before = tl.load(ended + row)
    over = before != 0
    here = tl.load(count + row)
    chosen = tl.where(over, pad, token).to(tl.int64)
    tl.store(tokens + row, chosen)
    tl.store(sequences + example * longest + here, chosen, mask=here < longest)
    tl.store(count + row, here + 1)
    tl.store(lengths + example, here + 1, mask=before == 0)
    over = over | (here + 1 >= tl.load(room + example))
    for i in range(how_many):
        over = over | (token == tl.load(marks + i))
    tl.store(ended + row, over.to(tl.uint8))


def choose(
    logits: Tensor, rows: Tensor, tokens: Tensor, count: Tensor, room: Tensor, ended: Tensor, sequences: Tensor,
    lengths: Tensor, marks: Tensor, pad: int,
) -> None:  # fmt: skip
    """One greedy choice for each row of logits [rows, vocabulary], with all its bookkeeping, in place."""
    logits = logits.contiguous()
    _choose[(rows.shape[0],)](
        logits, rows, tokens, count, room, ended.view(torch.uint8), sequences, lengths, marks, marks.shape[0], logits.shape[1],
        sequences.shape[1], pad, BLOCK=min(8192, triton.next_power_of_2(logits.shape[1])), num_warps=8,
    )  # fmt: skip
