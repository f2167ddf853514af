"""`mix` for Hopper GPUs, written in Gluon: copies, products and epilogues on warps of their own, all at the same time.

    y = epilogue(W·x)        W [queries, keys], x [batch, keys, channels]; the modes are those of `mix`

A program keeps 128 rows of W in registers and walks over blocks of BN columns, so only x passes through shared memory.
Its blocks of keys come in an order that ends with the program's own rows, which Remixer's epilogue then finds there. Two
groups of four warps multiply 64 rows each; the second starts a block when the first is half through it, so that the
epilogue of one runs beside the products of the other. One warp fetches x; one per group fetches the operands of the
epilogue and writes the results, which replace them in shared memory. Gradients start with the last columns: what `outer`
wrote last is still in the L2 cache.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import triton.experimental.gluon.language as gl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tokenmix.ops.kernels.hopper import describe
from tokenmix.ops.kernels.tune import processors

ROWS = gl.constexpr(64)  # of W in one group of warps
KEYS = gl.constexpr(64)  # in a block of x
COLUMNS = 128


@gluon.jit
def _key(k, turn, BLOCKS: gl.constexpr):
    """The first key of the block at place k of the ring."""
    return (k + turn) % BLOCKS * KEYS


@gluon.jit
def _tile(nth, tiles, MODE: gl.constexpr):
    """The block of columns that comes in nth place."""
    if MODE == "compose_grad" or MODE == "gate_grad":
        return tiles - 1 - nth
    else:
        return nth


@gluon.jit
def _fetch(x, ring, full, empty, first, stop, step, chunks, keys, turn, MODE: gl.constexpr, BLOCKS: gl.constexpr,
           BN: gl.constexpr):  # fmt: skip
    """Blocks [KEYS, BN] of x, each into its place in the ring as soon as both groups are done with the one before."""
    phase = 0
    for nth in range(first, stop, step):
        tile = _tile(nth, stop, MODE)
        for k in gl.static_range(BLOCKS):
            mbarrier.wait(empty.index(k), phase ^ 1)
            mbarrier.expect(full.index(k), KEYS * BN * 2)
            at = [tile // chunks * keys + _key(k, turn, BLOCKS), tile % chunks * BN]
            tma.async_copy_global_to_shared(x, at, full.index(k), ring.index(k))
        phase ^= 1


@gluon.jit
def _carry(y, extra, own, other, y_s, extra_s, ready, done, first, stop, step, chunks, queries, row,
           MODE: gl.constexpr, LOADS: gl.constexpr, STORES: gl.constexpr, BN: gl.constexpr):  # fmt: skip
    """One group's operands of the epilogue into shared memory, its results out of it."""
    phase = 0
    PART: gl.constexpr = BN // 2
    for nth in range(first, stop, step):
        tile = _tile(nth, stop, MODE)
        i = tile // chunks * queries + row
        c = tile % chunks * BN
        mbarrier.expect(ready, LOADS * ROWS * BN * 2)
        for n in gl.static_range(2):
            if LOADS > 0:
                tma.async_copy_global_to_shared(own, [i, c + n * PART], ready, y_s.index(n))
            if LOADS > 1:
                tma.async_copy_global_to_shared(other, [i, c + n * PART], ready, extra_s.index(n))
        mbarrier.wait(done, phase)
        for n in gl.static_range(2):
            tma.async_copy_shared_to_global(y, [i, c + n * PART], y_s.index(n))
            if STORES > 1:
                tma.async_copy_shared_to_global(extra, [i, c + n * PART], extra_s.index(n))
        tma.store_wait(pendings=0)
        phase ^= 1


@gluon.jit
def _finish(s, own_s, y_s, extra_s, b, alpha, MODE: gl.constexpr, SAVE: gl.constexpr):
    """The epilogue of some columns; see `mix`. y replaces its own operand, what is kept the other."""
    out = s
    if MODE == "compose":
        t = own_s.load(s.type.layout).to(gl.float32)
        out = alpha * (s * t) + (1 - alpha) * (t - s)
    elif MODE == "compose_grad":
        t = y_s.load(s.type.layout).to(gl.float32)
        out = s + t * (alpha * extra_s.load(s.type.layout).to(gl.float32) + (1 - alpha))
    elif MODE == "gate":
        s += b
        out = y_s.load(s.type.layout).to(gl.float32) * s
    elif MODE == "gate_grad":
        t = y_s.load(s.type.layout).to(gl.float32)
        extra_s.store((t * extra_s.load(s.type.layout).to(gl.float32)).to(y_s.dtype))
    if SAVE and MODE != "gate_grad":
        extra_s.store(s.to(y_s.dtype))
    y_s.store(out.to(y_s.dtype))


@gluon.jit
def _multiply(w, bias, ring, full, empty, y_s, extra_s, ready, done, half, first, stop, step, keys, row, turn,
              alpha, GROUP: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr, SAVE: gl.constexpr,
              BLOCKS: gl.constexpr, BN: gl.constexpr):  # fmt: skip
    """s = W·x for one group's rows of W and all the program's columns."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    part: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN // 2, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    i = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, left))
    j = gl.arange(0, KEYS, layout=gl.SliceLayout(0, left))
    at = w + i[:, None] * keys + j[None, :]
    ws = (gl.load(at + _key(0, turn, BLOCKS)),)
    for k in gl.static_range(1, BLOCKS):
        ws += (gl.load(at + _key(k, turn, BLOCKS)),)  # type: ignore[assignment]
    if HAS_BIAS:
        b = gl.load(bias + row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, part))).to(gl.float32)[:, None]
    else:
        b = 0.0
    PART: gl.constexpr = BN // 2
    OWN: gl.constexpr = BLOCKS - 2 + GROUP if MODE == "compose" else -1  # where this group's rows of x are
    phase = 0
    for _ in range(first, stop, step):
        if GROUP == 1:
            mbarrier.wait(half, phase)
        acc = gl.zeros((ROWS, BN), gl.float32, layout=mma)
        for k in gl.static_range(BLOCKS):
            mbarrier.wait(full.index(k), phase)
            acc = warpgroup_mma(ws[k], ring.index(k), acc, use_acc=k > 0, is_async=True)
            if k > 0:
                acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
                if k - 1 != OWN:
                    mbarrier.arrive(empty.index(k - 1), count=1)
            if GROUP == 0 and k == BLOCKS // 2:
                mbarrier.arrive(half, count=1)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        if OWN != BLOCKS - 1:
            mbarrier.arrive(empty.index(BLOCKS - 1), count=1)
        mbarrier.wait(ready, phase)
        # in halves, which take fewer registers
        s0, s1 = gl.split(gl.permute(gl.reshape(acc, (ROWS, 2, PART)), (0, 2, 1)))
        s0 = gl.convert_layout(s0, part, assert_trivial=True)
        s1 = gl.convert_layout(s1, part, assert_trivial=True)
        if MODE == "compose":
            own = ring.index(OWN)
            _finish(s0, own.slice(0, PART, 1), y_s.index(0), extra_s.index(0), b, alpha, MODE, SAVE)
            _finish(s1, own.slice(PART, PART, 1), y_s.index(1), extra_s.index(1), b, alpha, MODE, SAVE)
        else:
            _finish(s0, y_s.index(0), y_s.index(0), extra_s.index(0), b, alpha, MODE, SAVE)
            _finish(s1, y_s.index(1), y_s.index(1), extra_s.index(1), b, alpha, MODE, SAVE)
        fence_async_shared()
        mbarrier.arrive(done, count=1)
        if MODE == "compose":
            mbarrier.arrive(empty.index(OWN), count=1)
        phase ^= 1


@gluon.jit
def _mix_hopper(
    w, x, y, extra, own, other, bias, tiles, chunks, queries, keys, alpha,
    MODE: gl.constexpr, HAS_BIAS: gl.constexpr, SAVE: gl.constexpr, BLOCKS: gl.constexpr,
    BN: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    LOADS: gl.constexpr = 0 if MODE == "plain" or MODE == "compose" else 1 if MODE == "gate" else 2
    STORES: gl.constexpr = 2 if SAVE else 1
    ring = gl.allocate_shared_memory(x.dtype, [BLOCKS, KEYS, BN], x.layout)
    y0 = gl.allocate_shared_memory(x.dtype, [2, ROWS, BN // 2], y.layout)
    y1 = gl.allocate_shared_memory(x.dtype, [2, ROWS, BN // 2], y.layout)
    extra0 = gl.allocate_shared_memory(x.dtype, [2, ROWS, BN // 2], y.layout)
    extra1 = gl.allocate_shared_memory(x.dtype, [2, ROWS, BN // 2], y.layout)
    full = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], mbarrier.MBarrierLayout())
    signals = gl.allocate_shared_memory(gl.int64, [5, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(BLOCKS):
        mbarrier.init(full.index(k), count=1)
        mbarrier.init(empty.index(k), count=2)
    for n in gl.static_range(5):
        mbarrier.init(signals.index(n), count=1)
    ready0, ready1, done0, done1 = signals.index(0), signals.index(1), signals.index(2), signals.index(3)
    half = signals.index(4)
    row_tiles = queries // (2 * ROWS)
    row = gl.program_id(0) % row_tiles * 2 * ROWS
    turn = row // KEYS + 2 if MODE == "compose" else 0
    first = gl.program_id(0) // row_tiles
    step = gl.num_programs(0) // row_tiles
    gl.warp_specialize(
        [
            (_multiply, (w, bias, ring, full, empty, y0, extra0, ready0, done0, half, first, tiles, step, keys, row,
                         turn, alpha, 0, MODE, HAS_BIAS, SAVE, BLOCKS, BN)),
            (_multiply, (w, bias, ring, full, empty, y1, extra1, ready1, done1, half, first, tiles, step, keys,
                         row + ROWS, turn, alpha, 1, MODE, HAS_BIAS, SAVE, BLOCKS, BN)),
            (_fetch, (x, ring, full, empty, first, tiles, step, chunks, keys, turn, MODE, BLOCKS, BN)),
            (_carry, (y, extra, own, other, y0, extra0, ready0, done0, first, tiles, step, chunks, queries, row,
                      MODE, LOADS, STORES, BN)),
            (_carry, (y, extra, own, other, y1, extra1, ready1, done1, first, tiles, step, chunks, queries, row + ROWS,
                      MODE, LOADS, STORES, BN)),
        ],
        [4, 1, 1, 1],
        [240, 24, 24, 24],
    )  # fmt: skip


def _describe(t: Tensor, rows: int, columns: int) -> Any:
    """A descriptor for blocks [rows, columns] of t [batch, length, channels] as rows of one matrix."""
    return describe(t, [rows, columns], [t.shape[0] * t.shape[1], t.shape[2]], [t.stride(1), 1])


def launch_mix_hopper(
    w: Tensor, x: Tensor, y: Tensor, extra: Tensor, own: Tensor, other: Tensor, bias: Tensor | None, *, mode: str,
    alpha: float, save: bool,
) -> None:  # fmt: skip
    """Fill y (and extra, if `save`). All sizes are multiples of the tiles', w [1, queries, keys ≤ 512], no padding."""
    _, queries, keys = w.shape
    batch, _, channels = x.shape
    row_tiles, chunks = queries // 128, channels // COLUMNS
    programs = min(batch * chunks, max(1, processors() // row_tiles)) * row_tiles
    parts = (_describe(t, 64, COLUMNS // 2) for t in (y, extra, own, other))
    _mix_hopper[(programs,)](
        w, _describe(x, 64, COLUMNS), *parts, w if bias is None else bias, batch * chunks, chunks, queries, keys,
        alpha, MODE=mode, HAS_BIAS=bias is not None, SAVE=save, BLOCKS=keys // 64, BN=COLUMNS,
        num_warps=4,
    )  # fmt: skip
