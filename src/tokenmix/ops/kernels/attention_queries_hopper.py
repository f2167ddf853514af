"""dq and the sum over the batch from one reading of dSᵀ, for Hopper GPUs, written in Gluon.

    dq[b, h] = dSᵀ[b, h]ᵀ k[b, h],   Σ[h] = Σ_b dSᵀ[b, h]        dSᵀ [examples, heads, keys, queries]

One warp copies blocks of dSᵀ and of k into a ring, four warps multiply, and two groups of four add what is in the ring
to sums that stay in registers: a program has 64 queries of all keys. A team of programs, one per 64 queries, walks over
its share of the pairs (head, example), so that k is read from memory once, and by the rest of the team from the cache. A
head that several teams share has its sums in parts, which are added afterwards, in their order. What lies past the last query
or key comes as zeros.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.experimental.gluon.language as gl
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tokenmix.ops.kernels.hopper import describe, merged, side_by_side
from tokenmix.ops.kernels.tune import gluon as runs_here
from tokenmix.ops.kernels.tune import processors

WIDTH = gl.constexpr(64)  # of a head
QUERIES = gl.constexpr(64)  # of a program
KEYS = gl.constexpr(128)  # in a block


@gluon.jit
def _fetch(ds, k, ds_s, k_s, full, empty, start, stop, heads, first, count, i0,
           BLOCKS: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """Blocks [KEYS, QUERIES] of dSᵀ and [KEYS, WIDTH] of k, as soon as all are done with what was in their slot."""
    n = 0
    for pair in range(start, stop):
        head = pair // count
        b = pair % count
        for block in gl.static_range(BLOCKS):
            slot = n % SLOTS
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (n // SLOTS & 1) ^ 1)
            mbarrier.expect(bar, KEYS * (QUERIES + WIDTH) * 2)
            tma.async_copy_global_to_shared(ds, [b * heads + head, block * KEYS, i0], bar, ds_s.index(slot))
            tma.async_copy_global_to_shared(k, [first + b, block * KEYS, head * WIDTH], bar, k_s.index(slot))
            n += 1


@gluon.jit
def _multiply(dq, ds_s, k_s, dq_s, full, empty, start, stop, first, count, i0,
              BLOCKS: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """dq of every pair."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    n = 0
    for pair in range(start, stop):
        acc = gl.zeros((QUERIES, WIDTH), gl.float32, layout=mma)
        for block in gl.static_range(BLOCKS):
            slot = n % SLOTS
            mbarrier.wait(full.index(slot), n // SLOTS & 1)
            turned = ds_s.index(slot).permute((1, 0))
            acc = warpgroup_mma(turned, k_s.index(slot), acc, use_acc=block > 0, is_async=True)
            if block > 0:
                acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
                mbarrier.arrive(empty.index((n - 1) % SLOTS), count=1)
            n += 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        mbarrier.arrive(empty.index((n - 1) % SLOTS), count=1)
        tma.store_wait(pendings=0)
        gl.barrier()
        dq_s.store(acc.to(dq_s.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(dq, [first + pair % count, i0, pair // count * WIDTH], dq_s)
    tma.store_wait(pendings=0)


# in assembly that is not to be moved: the compiler would load all blocks before it adds one, and run out of registers
_WIDEN = {"bf16": "shl.b32 a, $2, 16; and.b32 b, $2, 0xffff0000;",
          "fp16": ".reg .b16 c, d; mov.b32 {c, d}, $2; cvt.f32.f16 a, c; cvt.f32.f16 b, d;"}  # fmt: skip
ADD_BF16 = gl.constexpr("{.reg .b32 a, b; " + _WIDEN["bf16"] + " add.f32 $0, $3, a; add.f32 $1, $4, b;}")
ADD_FP16 = gl.constexpr("{.reg .b32 a, b; " + _WIDEN["fp16"] + " add.f32 $0, $3, a; add.f32 $1, $4, b;}")


@gluon.jit
def _add(parts, ds_s, full, empty, start, stop, heads, count, share, i0, queries, GROUP: gl.constexpr,
         BLOCKS: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """The sums of one half of each block, for the part of every head that is the team's."""
    HALF: gl.constexpr = KEYS // 2
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    halves = ds_s._reinterpret(ds_s.dtype, [SLOTS * 2, HALF, QUERIES], ds_s.layout)
    j = GROUP * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, layout))
    i = i0 + gl.arange(0, QUERIES, layout=gl.SliceLayout(0, layout))
    add: gl.constexpr = ADD_BF16 if ds_s.dtype == gl.bfloat16 else ADD_FP16
    n = 0
    for head in range(start // count, gl.cdiv(stop, count)):
        sums = (gl.zeros((HALF, QUERIES), gl.float32, layout=layout),)
        for _ in gl.static_range(1, BLOCKS):
            sums += (gl.zeros((HALF, QUERIES), gl.float32, layout=layout),)  # type: ignore[assignment]
        for _ in range(gl.maximum(start, head * count), gl.minimum(stop, (head + 1) * count)):
            after = ()
            for block in gl.static_range(BLOCKS):
                slot = n % SLOTS
                mbarrier.wait(full.index(slot), n // SLOTS & 1)
                tile = halves.index(slot * 2 + GROUP).load(layout)
                more = gl.inline_asm_elementwise(add, "=f,=f,r,f,f", [tile, sums[block]], gl.float32, False, 2)
                after += (more,)  # type: ignore[assignment]
                fence_async_shared()  # loads still under way would otherwise meet the next block
                mbarrier.arrive(empty.index(slot), count=1)
                n += 1
            sums = after  # type: ignore[assignment]
        part = start // share - head * count // share
        rows = ((part * heads + head).to(gl.int64) * BLOCKS * KEYS + j) * queries
        for block in gl.static_range(BLOCKS):
            gl.store(parts + (rows + block * KEYS * queries)[:, None] + i[None, :], sums[block])


@gluon.jit
def _queries_hopper(
    ds, k, dq, parts, pairs, heads, first, count, share, queries,
    SUMS: gl.constexpr, BLOCKS: gl.constexpr, SLOTS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """64 queries of `share` of the pairs (head, example); `queries` and keys are those of whole blocks."""
    tiles = queries // QUERIES
    i0 = gl.program_id(0) % tiles * QUERIES
    start = gl.program_id(0) // tiles * share
    stop = gl.minimum(start + share, pairs)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], ds.dtype)
    ds_s = gl.allocate_shared_memory(ds.dtype, [SLOTS, KEYS, QUERIES], square)
    k_s = gl.allocate_shared_memory(ds.dtype, [SLOTS, KEYS, WIDTH], square)
    dq_s = gl.allocate_shared_memory(ds.dtype, [QUERIES, WIDTH], square)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(SLOTS):
        mbarrier.init(full.index(n), count=1)
        mbarrier.init(empty.index(n), count=3 if SUMS else 1)
    if SUMS:
        gl.warp_specialize(
            [
                (_multiply, (dq, ds_s, k_s, dq_s, full, empty, start, stop, first, count, i0, BLOCKS, SLOTS)),
                (_add, (parts, ds_s, full, empty, start, stop, heads, count, share, i0, queries, 0, BLOCKS, SLOTS)),
                (_add, (parts, ds_s, full, empty, start, stop, heads, count, share, i0, queries, 1, BLOCKS, SLOTS)),
                (_fetch, (ds, k, ds_s, k_s, full, empty, start, stop, heads, first, count, i0, BLOCKS, SLOTS)),
            ],
            [4, 4, 1],
            [176, 176, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (dq, ds_s, k_s, dq_s, full, empty, start, stop, first, count, i0, BLOCKS, SLOTS)),
                (_fetch, (ds, k, ds_s, k_s, full, empty, start, stop, heads, first, count, i0, BLOCKS, SLOTS)),
            ],
            [1],
            [24],
        )  # fmt: skip


@triton.jit
def _total(parts, sums, count, share, size, BLOCK: tl.constexpr):
    """Σ of a head: of the parts that it has, in their order."""
    head = tl.program_id(1)
    at = head.to(tl.int64) * size + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(parts + at)
    for part in range(1, ((head + 1) * count - 1) // share - head * count // share + 1):
        total += tl.load(parts + part * tl.num_programs(1).to(tl.int64) * size + at)
    tl.store(sums + at, total)


def fits_queries_hopper(ds: Tensor, k: Tensor, dq: Tensor) -> bool:
    """Can `launch_queries_hopper` take these tensors, with any part of the batch?"""
    _, heads, keys, queries = ds.shape
    kinds = ds.dtype == k.dtype == dq.dtype and ds.dtype in (torch.bfloat16, torch.float16)
    sizes = 0 < keys <= 512 and 0 < queries <= 64 * processors() and k.shape[0] == dq.shape[0]
    pitch = ds.stride(2)
    rows = ds.stride() == (heads * keys * pitch, keys * pitch, pitch, 1) and pitch % 8 == 0 and ds.data_ptr() % 16 == 0
    return runs_here() and kinds and sizes and rows and side_by_side(k) and side_by_side(dq)


def launch_queries_hopper(ds: Tensor, k: Tensor, dq: Tensor, first: int, count: int, wanted: bool) -> Tensor | None:
    """Fill dq [batch, heads, queries, 64] of `count` examples from `first` on, whose dSᵀ is ds[:count].

    Rows of dSᵀ may lie further apart than their length, multiples of 8 numbers. Returns Σ dSᵀ over them, [heads, keys, queries]
    in float32, if `wanted`.
    """
    examples, heads, keys, queries = ds.shape
    blocks, tiles, pairs = triton.cdiv(keys, 128), triton.cdiv(queries, 64), heads * count
    share = triton.cdiv(pairs, max(1, processors() // tiles))
    shared = max(((h + 1) * count - 1) // share - h * count // share + 1 for h in range(heads))
    parts = ds.new_empty(shared if wanted else 0, heads, blocks * 128, tiles * 64, dtype=torch.float32)
    _queries_hopper[(triton.cdiv(pairs, share) * tiles,)](
        describe(ds, [1, 128, 64], [examples * heads, keys, queries], [*ds.stride()[1:3], 1]),
        describe(merged(k), [1, 128, 64]), describe(merged(dq), [1, 64, 64]), parts if wanted else ds, pairs, heads, first,
        count, share, tiles * 64, SUMS=wanted, BLOCKS=blocks, SLOTS=6, num_warps=4,
    )  # fmt: skip
    if not wanted:
        return None
    sums = parts[0]
    if shared > 1:
        sums = torch.empty_like(sums)
        size = sums[0].numel()
        _total[(size // 2048, heads)](parts, sums, count, share, size, BLOCK=2048)
    return sums[:, :keys, :queries]
