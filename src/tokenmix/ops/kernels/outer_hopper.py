"""dW of `outer` for Hopper GPUs, written in Gluon: one warp copies, two groups of four make ds and multiply.

The copy engine knows where an example ends: rows past its last query or key are read as zeros and not written. ds goes
from the registers it is made in straight into the product, and through shared memory only where it is written out.
Remixer's ds needs rows of x that one tile of a row has in shared memory as columns, too, and takes from there: it has the
fewest bytes to fetch, and it writes ds. Else the column tiles of a row share that between them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
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

ROWS = gl.constexpr(64)  # of ds in one group of warps


@gluon.jit
def _fetch(g, own, x, g_s, own_s, x_s, full, empty, first, apart, count, chunks, i0, j0, within,
           MODE: gl.constexpr, SLOTS: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):  # fmt: skip
    """Every step's tiles into the slots, as soon as both groups are done with what was there."""
    OPERANDS: gl.constexpr = 1 if MODE == "plain" else 2
    for t in range(count):
        slot = t % SLOTS
        b = (first + t * apart) // chunks
        c = (first + t * apart) % chunks * BK
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), (t // SLOTS & 1) ^ 1)
        mbarrier.expect(bar, (OPERANDS * 2 * ROWS + BN) * BK * 2, pred=within < 0)
        mbarrier.expect(bar, (2 * ROWS + BN) * BK * 2, pred=within >= 0)
        for n in gl.static_range(2):
            at = [b, i0 + n * ROWS, c]
            tma.async_copy_global_to_shared(g, at, bar, g_s.index(slot * 2 + n))
            if MODE != "plain":
                tma.async_copy_global_to_shared(own, at, bar, own_s.index(slot * 2 + n), pred=within < 0)
        tma.async_copy_global_to_shared(x, [b, j0, c], bar, x_s.index(slot))


@gluon.jit
def _make(g_s, own_s, x_s, full, t, wanted, within, alpha, GROUP: gl.constexpr, MODE: gl.constexpr,
          SLOTS: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """ds of a step, 64 rows, and the sum of each row. within: where the tile of x holds the rows of `own`, too; −1 if it
    does not."""
    slot = t % SLOTS
    mbarrier.wait(full.index(slot), t // SLOTS & 1, pred=wanted)
    g = g_s.index(slot * 2 + GROUP).load(layout)
    made = g.to(gl.float32)
    if MODE != "plain":
        if within < 0:
            own = own_s.index(slot * 2 + GROUP).load(layout)
        else:
            own = x_s.index(slot * (x_s.shape[0] // SLOTS) + within + GROUP).load(layout)
        o = own.to(gl.float32)
        if MODE == "compose":
            o = alpha * o - (1 - alpha)
        made *= o
        g = made.to(g_s.dtype)
    return g, gl.sum(made, 1)


@gluon.jit
def _sum(g_s, own_s, x_s, ds_s, full, empty, ds, dw, total, first, apart, count, chunks, queries, across, column_tiles,
         i0, j0, within, part, alpha, GROUP: gl.constexpr, MODE: gl.constexpr, SAME: gl.constexpr, TOTAL: gl.constexpr,
         SLOTS: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):  # fmt: skip
    """Σ ds·xᵀ, and Σ ds if TOTAL, for 64 rows of ds: ds of the next step is made while the product of this one runs."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    acc = gl.zeros((ROWS, BN), gl.float32, layout=mma)
    sums = gl.zeros((ROWS,), gl.float32, layout=gl.SliceLayout(1, left))
    i0 += GROUP * ROWS
    pieces = x_s._reinterpret(x_s.dtype, [SLOTS * (BN // ROWS), ROWS, BK], g_s.layout)
    a, row = _make(g_s, own_s, pieces, full, 0, True, within, alpha, GROUP, MODE, SLOTS, left)
    for t in range(count):
        step = first + t * apart
        acc = warpgroup_mma(a, x_s.index(t % SLOTS).permute((1, 0)), acc, is_async=True)
        if MODE != "plain":
            # every ds is written by one of the column tiles
            mine = within >= 0 if SAME else t % column_tiles == j0 // BN
            if mine:
                tma.store_wait(pendings=0)
                gl.barrier()
                ds_s.store(a)
                fence_async_shared()
                tma.async_copy_shared_to_global(ds, [step // chunks, i0, step % chunks * BK], ds_s)
        sums += row
        after, row = _make(g_s, own_s, pieces, full, t + 1, t + 1 < count, within, alpha, GROUP, MODE, SLOTS, left)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index(t % SLOTS), count=1)
        a = after
    tma.store_wait(pendings=0)
    i = i0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, mma))
    j = j0 + gl.arange(0, BN, layout=gl.SliceLayout(0, mma))
    inside = (i < queries)[:, None] & (j < across)[None, :]
    gl.store(dw + (part * queries + i[:, None]) * across + j[None, :], acc, mask=inside)
    if TOTAL:
        n = i0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, left))
        gl.store(total + part * queries + n, sums, mask=(n < queries) & (j0 == 0))


@gluon.jit
def _outer_hopper(
    g, own, x, ds, dw, total, batch, queries, keys, width, across, splits, alpha,
    MODE: gl.constexpr, SAME: gl.constexpr, TOTAL: gl.constexpr, TURNS: gl.constexpr, BN: gl.constexpr,
    BK: gl.constexpr, SLOTS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One tile [128, BN] of dW (one head) over one part of the steps (example, BK channels). across: dW's row stride."""
    column_tiles = gl.cdiv(keys, BN)
    row_tiles = gl.cdiv(queries, 2 * ROWS)
    pid = gl.program_id(0)
    j0 = pid % column_tiles * BN
    i0 = pid // column_tiles % row_tiles * 2 * ROWS
    part = pid // column_tiles // row_tiles
    chunks = width // BK
    steps = batch * chunks
    if TURNS:
        first = part
        apart = splits
        count = gl.cdiv(steps - part, splits)
    else:
        first = steps * part // splits
        apart = 1
        count = steps * (part + 1) // splits - first
    within = -1
    if SAME and i0 // BN == j0 // BN:
        within = (i0 - j0) // ROWS

    rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BK], g.dtype)
    columns: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], g.dtype)
    g_s = gl.allocate_shared_memory(g.dtype, [2 * SLOTS, ROWS, BK], rows)
    own_s = gl.allocate_shared_memory(g.dtype, [2 * SLOTS, ROWS, BK], rows)
    x_s = gl.allocate_shared_memory(g.dtype, [SLOTS, BN, BK], columns)
    ds_s = gl.allocate_shared_memory(g.dtype, [2, ROWS, BK], rows)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(SLOTS):
        mbarrier.init(full.index(n), count=1)
        mbarrier.init(empty.index(n), count=2)
    gl.warp_specialize(
        [
            (_sum, (g_s, own_s, x_s, ds_s.index(0), full, empty, ds, dw, total, first, apart, count, chunks, queries,
                    across, column_tiles, i0, j0, within, part, alpha, 0, MODE, SAME, TOTAL, SLOTS, BN, BK)),
            (_sum, (g_s, own_s, x_s, ds_s.index(1), full, empty, ds, dw, total, first, apart, count, chunks, queries,
                    across, column_tiles, i0, j0, within, part, alpha, 1, MODE, SAME, TOTAL, SLOTS, BN, BK)),
            (_fetch, (g, own, x, g_s, own_s, x_s, full, empty, first, apart, count, chunks, i0, j0, within, MODE,
                      SLOTS, BN, BK)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def launch_outer_hopper(
    g: Tensor, own: Tensor, x: Tensor, ds: Tensor, dw: Tensor, total: Tensor | None, *, mode: str, alpha: float,
    turns: bool,
) -> None:  # fmt: skip
    """Fill dw [splits, 1, queries, keys], ds, and total [splits, 1, queries]; width is a multiple of 64.

    The rows of dw start at multiples of 16 numbers, up to where the last one is filled.
    """
    batch, queries, width = g.shape
    splits, keys, across = dw.shape[0], x.shape[1], dw.stride(2)
    _outer_hopper[(splits * triton.cdiv(queries, 128) * triton.cdiv(keys, 256),)](
        *(describe(t, [1, rows, 64]) for t, rows in ((g, 64), (own, 64), (x, 256), (ds, 64))), dw,
        dw if total is None else total, batch, queries, keys, width, across, splits, alpha, MODE=mode, SAME=own is x,
        TOTAL=total is not None, TURNS=turns, BN=256, BK=64, SLOTS=3, num_warps=4,
    )  # fmt: skip
