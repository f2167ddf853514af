"""dW of `outer` for Hopper GPUs, written in Gluon: the same sums, with shared memory and its copies laid out by hand.

Triton moves ds through shared memory twice on its way into the product. Here ds replaces g in its buffer, where both
the matrix units and the copy engine that writes it out read it, and is made while the product before it still runs.
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def _fetch(g, own, x, g_s, own_s, x_s, bars, step, slot, wanted, ti, tj, chunks, queries, keys, MODE: gl.constexpr,
           BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):  # fmt: skip
    """Start copying a step's tiles into their slot."""
    b = step // chunks
    c = step % chunks * BK
    bar = bars.index(slot)
    operands: gl.constexpr = 1 if MODE == "plain" else 2
    mbarrier.expect(bar, (operands * BM + BN) * BK * 2, pred=wanted)
    tma.async_copy_global_to_shared(g, [b * queries + ti * BM, c], bar, g_s.index(slot), pred=wanted)
    if MODE != "plain":
        tma.async_copy_global_to_shared(own, [b * queries + ti * BM, c], bar, own_s.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(x, [b * keys + tj * BN, c], bar, x_s.index(slot), pred=wanted)


@gluon.jit
def _outer_hopper(
    g, own, x, ds, dw, total, batch, queries, keys, width, splits, alpha_value,
    MODE: gl.constexpr, TOTAL: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    SLOTS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One tile [BM, BN] of dW (one head) over one part of the steps (example, BK channels)."""
    column_tiles = keys // BN
    row_tiles = queries // BM
    pid = gl.program_id(0)
    tj = pid % column_tiles
    ti = pid // column_tiles % row_tiles
    part = pid // column_tiles // row_tiles
    chunks = width // BK
    steps = batch * chunks
    first = steps * part // splits
    count = steps * (part + 1) // splits - first

    g_s = gl.allocate_shared_memory(g.dtype, [SLOTS, BM, BK], g.layout)
    own_s = gl.allocate_shared_memory(g.dtype, [SLOTS if MODE != "plain" else 1, BM, BK], g.layout)
    x_s = gl.allocate_shared_memory(g.dtype, [SLOTS, BN, BK], x.layout)
    bars = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(SLOTS):
        mbarrier.init(bars.index(n), count=1)

    # a warp makes 16 whole rows of ds; a group of four makes the 64 rows that its own products read
    rows: gl.constexpr = gl.BlockedLayout([4, 8], [4, 8], [num_warps, 1], [1, 0])
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BN, 16])
    acc = gl.zeros((BM, BN), gl.float32, layout=mma)
    sums = gl.zeros((BM, BK), gl.float32, layout=rows)
    for n in gl.static_range(SLOTS - 1):
        _fetch(
            g, own, x, g_s, own_s, x_s, bars, first + n, n, n < count, ti, tj, chunks, queries, keys, MODE, BM, BN, BK
        )
    for t in range(count):
        slot = t % SLOTS
        step = first + t
        mbarrier.wait(bars.index(slot), t // SLOTS & 1)
        if MODE != "plain":
            gt = g_s.index(slot).load(rows).to(gl.float32)
            o = own_s.index(slot).load(rows).to(gl.float32)
            if MODE == "gate":
                gt = gt * o
            else:
                gt = gt * (alpha_value * o - (1 - alpha_value))
            if TOTAL:
                sums += gt
            g_s.index(slot).store(gt.to(g.dtype))
            fence_async_shared()
        acc = warpgroup_mma(g_s.index(slot), x_s.index(slot).permute((1, 0)), acc, is_async=True)
        if MODE != "plain":
            if step % column_tiles == tj:  # every ds is written by one of the column tiles
                tma.async_copy_shared_to_global(
                    ds, [step // chunks * queries + ti * BM, step % chunks * BK], g_s.index(slot)
                )
                tma.store_wait(pendings=1)
            else:
                tma.store_wait(pendings=0)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        # the step before is done with its slot
        ahead = t + SLOTS - 1
        _fetch(g, own, x, g_s, own_s, x_s, bars, first + ahead, ahead % SLOTS, ahead < count, ti, tj, chunks, queries,
               keys, MODE, BM, BN, BK)  # fmt: skip
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    if MODE != "plain":
        tma.store_wait(pendings=0)
    for n in gl.static_range(SLOTS):
        mbarrier.invalidate(bars.index(n))
    i = ti * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, mma))
    j = tj * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, mma))
    gl.store(dw + (part * queries + i[:, None]) * keys + j[None, :], acc)
    if TOTAL:
        i = ti * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, rows))
        if tj == 0:
            gl.store(total + part * queries + i, gl.sum(sums, 1))


def _describe(t: Tensor, rows: int, columns: int) -> Any:
    """A descriptor for blocks [rows, columns] of t [batch, length, channels] as rows of one matrix."""
    kind = gl.bfloat16 if t.element_size() == 2 and "bfloat16" in str(t.dtype) else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
    return TensorDescriptor(t, [t.shape[0] * t.shape[1], t.shape[2]], [t.stride(1), 1], [rows, columns], layout)


def launch_outer_hopper(
    g: Tensor, own: Tensor, x: Tensor, ds: Tensor, dw: Tensor, total: Tensor | None, *, mode: str, alpha_value: float,
    splits: int, BM: int, BN: int, BK: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Fill dw [splits, 1, queries, keys], ds and total [splits, 1, queries]; all sizes are multiples of the tiles'."""
    batch, queries, width = g.shape
    keys = x.shape[1]
    _outer_hopper[(splits * (queries // BM) * (keys // BN),)](
        _describe(g, BM, BK), _describe(own, BM, BK), _describe(x, BN, BK), _describe(ds, BM, BK), dw,
        total if total is not None else dw, batch, queries, keys, width, splits, alpha_value,
        MODE=mode, TOTAL=total is not None, BM=BM, BN=BN, BK=BK, SLOTS=num_stages, num_warps=num_warps,
    )  # fmt: skip
