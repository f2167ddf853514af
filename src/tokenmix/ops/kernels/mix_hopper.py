"""`mix` for Hopper GPUs, written in Gluon: W stays in shared memory, and three groups of warps share the work.

A program owns 128 rows of W and walks over blocks of 128 columns (one example, 128 channels). One warp copies x in,
64 rows at a time, into a ring of slots. Two groups of four warps take every other block: while one multiplies, the
other finishes its block. The operands of the epilogue come last through the same ring (for `compose` they are the rows
of x that are multiplied last), and the results leave from the slots in which those lie.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

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

from tokenmix.ops.kernels.outer_hopper import describe_rows
from tokenmix.ops.kernels.tune import processors

ROWS, COLUMNS, HALF = 128, 128, 64  # of a block of the result; of a slot, and of one product
SLOTS = 6  # what fits beside 128 rows of W of 512 columns


@gluon.jit
def _copy(t, at, ring, full, empty, n, SLOTS: gl.constexpr, HALF: gl.constexpr, COLUMNS: gl.constexpr):
    """Copy the n-th tile of the stream into its slot, as soon as that is free."""
    slot = n % SLOTS
    mbarrier.wait(empty.index(slot), n // SLOTS & 1 ^ 1)
    mbarrier.expect(full.index(slot), HALF * COLUMNS * 2)
    tma.async_copy_global_to_shared(t, at, full.index(slot), ring.index(slot))


@gluon.jit
def _produce(w, x, own, other, w_s, w_here, ring, full, empty, rows_at, first, stride, blocks, per_example, queries,
             CHUNKS: gl.constexpr, OPERANDS: gl.constexpr, SLOTS: gl.constexpr, HALF: gl.constexpr,
             COLUMNS: gl.constexpr):  # fmt: skip
    """The warp that copies: W once, then for every block x and the operands of the epilogue, half by half."""
    mbarrier.expect(w_here, CHUNKS * 2 * HALF * HALF * 2)
    for tile in gl.static_range(2 * CHUNKS):
        at = [rows_at + tile % 2 * HALF, tile // 2 * HALF]
        tma.async_copy_global_to_shared(w, at, w_here, w_s.index(tile))
    n = 0
    for block in range(first, blocks, stride):
        b = block // per_example
        c = block % per_example * COLUMNS
        for k in range(CHUNKS):
            chunk = (rows_at // HALF + 2 + k) % CHUNKS  # the own rows last
            _copy(x, [b * CHUNKS * HALF + chunk * HALF, c], ring, full, empty, n, SLOTS, HALF, COLUMNS)
            n += 1
        for half in gl.static_range(2):
            row = b * queries + rows_at + half * HALF
            if OPERANDS >= 1:
                _copy(own, [row, c], ring, full, empty, n, SLOTS, HALF, COLUMNS)
                n += 1
            if OPERANDS == 2:
                _copy(other, [row, c], ring, full, empty, n, SLOTS, HALF, COLUMNS)
                n += 1


@gluon.jit
def _send(t, at, value, place):
    """Start writing a tile out from its slot."""
    place.store(value.to(t.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(t, at, place)


@gluon.jit
def _consume(WHICH: gl.constexpr, y, extra, bias, w_s, w_here, ring, full, empty, rows_at, first, stride, blocks,
             per_example, queries, alpha, MODE: gl.constexpr, SAVE: gl.constexpr, HAS_BIAS: gl.constexpr,
             CHUNKS: gl.constexpr, OPERANDS: gl.constexpr, SLOTS: gl.constexpr, HALF: gl.constexpr,
             COLUMNS: gl.constexpr):  # fmt: skip
    """A group that multiplies and finishes every other block."""
    PER: gl.constexpr = CHUNKS + 2 * OPERANDS  # tiles of a block
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    mbarrier.wait(w_here, 0)
    n = WHICH * PER
    for block in range(first + WHICH * stride, blocks, 2 * stride):
        upper = gl.zeros((HALF, COLUMNS), gl.float32, layout=mma)
        lower = gl.zeros((HALF, COLUMNS), gl.float32, layout=mma)
        for k in range(CHUNKS):
            slot = n % SLOTS
            chunk = (rows_at // HALF + 2 + k) % CHUNKS
            mbarrier.wait(full.index(slot), n // SLOTS & 1)
            upper = warpgroup_mma(w_s.index(2 * chunk), ring.index(slot), upper, is_async=True)
            lower = warpgroup_mma(w_s.index(2 * chunk + 1), ring.index(slot), lower, is_async=True)
            upper, lower = warpgroup_mma_wait(num_outstanding=2, deps=(upper, lower))
            # the products before are done with their slot; compose needs the last two itself
            free = (k > 0) & (k < CHUNKS - 1) if OPERANDS == 0 else k > 0
            mbarrier.arrive(empty.index((n + SLOTS - 1) % SLOTS), count=1, pred=free)
            n += 1
        upper, lower = warpgroup_mma_wait(num_outstanding=0, deps=(upper, lower))
        if OPERANDS > 0:
            mbarrier.arrive(empty.index((n + SLOTS - 1) % SLOTS), count=1)
        b = block // per_example
        c = block % per_example * COLUMNS
        for half in gl.static_range(2):
            s = upper if half == 0 else lower
            at = b * queries + rows_at + half * HALF
            if OPERANDS == 0:
                slot = (n + SLOTS - 2 + half) % SLOTS
            else:
                slot = n % SLOTS
                mbarrier.wait(full.index(slot), n // SLOTS & 1)
                n += 1
            place = ring.index(slot)
            t = place.load(mma).to(gl.float32)
            if MODE == "compose":
                _send(y, [at, c], alpha * (s * t) + (1 - alpha) * (t - s), place)
                if SAVE:
                    tma.store_wait(pendings=0)
                    _send(extra, [at, c], s, place)
            elif MODE == "gate":
                if HAS_BIAS:
                    i = rows_at + half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, mma))
                    s = s + gl.load(bias + i).to(gl.float32)[:, None]
                _send(y, [at, c], t * s, place)
                if SAVE:
                    tma.store_wait(pendings=0)
                    _send(extra, [at, c], s, place)
            else:
                slot2 = n % SLOTS
                mbarrier.wait(full.index(slot2), n // SLOTS & 1)
                n += 1
                place2 = ring.index(slot2)
                o = place2.load(mma).to(gl.float32)
                if MODE == "compose_grad":
                    _send(y, [at, c], s + t * (alpha * o + (1 - alpha)), place)
                else:  # gate_grad
                    _send(y, [at, c], s, place)
                    _send(extra, [at, c], t * o, place2)
            tma.store_wait(pendings=0)
            mbarrier.arrive(empty.index(slot), count=1)
            if OPERANDS == 2:
                mbarrier.arrive(empty.index((slot + 1) % SLOTS), count=1)
        n += PER


@gluon.jit
def _mix_hopper(
    w, x, y, extra, own, other, bias, queries, blocks, per_example, alpha,
    MODE: gl.constexpr, SAVE: gl.constexpr, HAS_BIAS: gl.constexpr, CHUNKS: gl.constexpr, OPERANDS: gl.constexpr,
    SLOTS: gl.constexpr, HALF: gl.constexpr, COLUMNS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Programs of the same column blocks are neighbours, so that x comes from memory once."""
    row_tiles = queries // (2 * HALF)
    rows_at = gl.program_id(0) % row_tiles * (2 * HALF)
    first = gl.program_id(0) // row_tiles
    stride = gl.num_programs(0) // row_tiles
    w_s = gl.allocate_shared_memory(w.dtype, [2 * CHUNKS, HALF, HALF], w.layout)
    ring = gl.allocate_shared_memory(x.dtype, [SLOTS, HALF, COLUMNS], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    w_here = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    mbarrier.init(w_here, count=1)
    gl.warp_specialize(
        [
            (_consume, (0, y, extra, bias, w_s, w_here, ring, full, empty, rows_at, first, stride, blocks, per_example,
                        queries, alpha, MODE, SAVE, HAS_BIAS, CHUNKS, OPERANDS, SLOTS, HALF, COLUMNS)),
            (_consume, (1, y, extra, bias, w_s, w_here, ring, full, empty, rows_at, first, stride, blocks, per_example,
                        queries, alpha, MODE, SAVE, HAS_BIAS, CHUNKS, OPERANDS, SLOTS, HALF, COLUMNS)),
            (_produce, (w, x, own, other, w_s, w_here, ring, full, empty, rows_at, first, stride, blocks, per_example,
                        queries, CHUNKS, OPERANDS, SLOTS, HALF, COLUMNS)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


def launch_mix_hopper(
    w: Tensor, x: Tensor, y: Tensor, *, mode: str, extra: Tensor | None, own: Tensor | None, other: Tensor | None,
    bias: Tensor | None, alpha_value: float,
) -> None:  # fmt: skip
    """`mix` of one head without masks; lengths are multiples of 128 up to 512, channels of 128."""
    batch, keys, channels = x.shape
    queries = w.shape[1]
    row_tiles, per_example = queries // ROWS, channels // COLUMNS
    blocks = batch * per_example
    groups = min(processors() // row_tiles, blocks)
    operands = {"compose": 0, "gate": 1}.get(mode, 2)
    given = [describe_rows(t if t is not None else y, HALF, COLUMNS) for t in (x, y, extra, own, other)]
    x_, y_, extra_, own_, other_ = given
    _mix_hopper[(groups * row_tiles,)](
        describe_rows(w, HALF, HALF), x_, y_, extra_, own_, other_, bias if bias is not None else w, queries, blocks,
        per_example, alpha_value, MODE=mode, SAVE=extra is not None and operands < 2, HAS_BIAS=bias is not None,
        CHUNKS=keys // HALF, OPERANDS=operands, SLOTS=SLOTS, HALF=HALF, COLUMNS=COLUMNS, num_warps=4, maxnreg=168,
    )  # fmt: skip
