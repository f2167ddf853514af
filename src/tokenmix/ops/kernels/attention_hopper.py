"""`attention_backward_keys` for Hopper GPUs, written in Gluon: copies, products and exponentials all at the same time.

    Sᵀ = k qᵀ + biasᵀ,  Pᵀ = exp2(Sᵀ log₂e − lse),  dPᵀ = v doᵀ,  dSᵀ = Pᵀ ⊙ (dPᵀ − Δ),  dv = Pᵀ do,  dk = dSᵀ q

A tile is 128 keys of one head of one example; programs walk over tiles, the next one's k and v being fetched meanwhile. Two
groups of four warps have 64 keys each. They keep k and v in registers, where Pᵀ and dSᵀ go straight from those they are
made in into the products, so only q and do pass through shared memory to the matrix units. The product k qᵀ of the next 64
queries is started before those of the last are waited for, and runs while dSᵀ is written. One warp fetches tiles, another
lse and Δ. What lies past the last query or key comes as zeros, its weights are 0, and nothing is written there.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
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

from tokenmix.ops.kernels import tune
from tokenmix.ops.kernels.hopper import describe, merged, side_by_side, widened
from tokenmix.ops.kernels.mix import tma_ready

WIDTH = gl.constexpr(64)  # of a head
ROWS = gl.constexpr(64)  # keys in one group of warps, and queries in a block
BYTES = gl.constexpr(64 * 64 * 2)  # in a block
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _place(n, PLACES: gl.constexpr):
    """The place of the n-th of something in a ring, and whether the ring has gone round an odd number of times."""
    return (n % PLACES).to(gl.int32), (n // PLACES & 1).to(gl.int32)


@gluon.jit
def _fetch(q, k, v, bias, do, q_s, k_s, v_s, bias_s, do_s, full, empty, loaded, taken, b_first, tiles, heads, key_tiles,
           blocks, BIAS: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """k and v of every tile, and its blocks of q, do and bias into the slots as soon as both groups are done with them."""
    n = gl.to_tensor(0).to(gl.uint32)
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        j0 = tile % key_tiles * 2 * ROWS
        head = tile // key_tiles % heads
        b = b_first + tile // key_tiles // heads
        c = head * WIDTH
        mbarrier.wait(taken, turn ^ 1)
        mbarrier.expect(loaded, 4 * BYTES)
        for g in gl.static_range(2):
            tma.async_copy_global_to_shared(k, [b, j0 + g * ROWS, c], loaded, k_s.index(g))
            tma.async_copy_global_to_shared(v, [b, j0 + g * ROWS, c], loaded, v_s.index(g))
        turn ^= 1
        for t in range(blocks):
            slot, lap = _place(n, SLOTS)
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), lap ^ 1)
            mbarrier.expect(bar, 4 * BYTES if BIAS else 2 * BYTES)
            if BIAS:
                for g in gl.static_range(2):
                    at = [head, t * ROWS, j0 + g * ROWS]
                    tma.async_copy_global_to_shared(bias, at, bar, bias_s.index(slot * 2 + g))
            tma.async_copy_global_to_shared(q, [b, t * ROWS, c], bar, q_s.index(slot))
            tma.async_copy_global_to_shared(do, [b, t * ROWS, c], bar, do_s.index(slot))
            n += 1


@gluon.jit
def _fetch_sums(lse, delta, lse_s, delta_s, full, empty, b_first, tiles, heads, key_tiles, blocks, queries,
                EVEN_I: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """lse and Δ of every block of queries: +∞ and 0 past the last, whose weights are so 0."""
    i = gl.arange(0, ROWS, layout=gl.BlockedLayout([2], [32], [1], [0]))
    n = gl.to_tensor(0).to(gl.uint32)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        at = (tile // key_tiles + b_first * heads) * queries + i
        for t in range(blocks):
            slot, lap = _place(n, SLOTS)
            if EVEN_I:
                sums = gl.load(lse + at + t * ROWS)
                shift = gl.load(delta + at + t * ROWS)
            else:
                inside = t * ROWS + i < queries
                sums = gl.load(lse + at + t * ROWS, mask=inside, other=float("inf"))
                shift = gl.load(delta + at + t * ROWS, mask=inside, other=0.0)
            mbarrier.wait(empty.index(slot), lap ^ 1)
            lse_s.index(slot).store(sums)
            delta_s.index(slot).store(shift)
            mbarrier.arrive(full.index(slot), count=1)
            n += 1


@gluon.jit
def _shade(mask, smb, smj, b, j0, keys, MASK: gl.constexpr, EVEN_J: gl.constexpr, layout: gl.constexpr):
    """What is added to the logits of each key: −∞ where it is not visible."""
    shade = 0.0
    j = j0 + gl.arange(0, ROWS, layout=layout)
    if MASK:
        at = mask + b.to(gl.int64) * smb + j * smj
        if EVEN_J:
            seen = gl.load(at) != 0
        else:
            seen = gl.load(at, mask=j < keys, other=0) != 0
        shade = gl.where(seen, 0.0, float("-inf"))
    elif not EVEN_J:
        shade = gl.where(j < keys, 0.0, float("-inf"))
    return shade


@gluon.jit
def _write(t, out_s, n, out, at, PLACES: gl.constexpr):
    """t into the next of a few places in shared memory; from there it goes out by itself."""
    place = out_s.index(_place(n, PLACES)[0])
    tma.store_wait(pendings=PLACES - 1)
    gl.barrier()
    place.store(t)
    fence_async_shared()
    tma.async_copy_shared_to_global(out, at, place)


@gluon.jit
def _step(kt, vt, shade, s, acc_k, acc_v, q_s, bias_s, do_s, lse_s, delta_s, out_s, ds, at, full, empty, n, t,
          written, MORE: gl.constexpr, GROUP: gl.constexpr, BIAS: gl.constexpr, SHADED: gl.constexpr,
          CAUSAL: gl.constexpr, SLOTS: gl.constexpr, PLACES: gl.constexpr, mma: gl.constexpr):  # fmt: skip
    """One block of queries, whose Sᵀ is under way; if MORE follow, that of the next is when this ends."""
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    column: gl.constexpr = gl.SliceLayout(0, mma)
    none = gl.zeros((ROWS, ROWS), gl.float32, layout=mma)
    slot, _ = _place(n, SLOTS)
    qt = q_s.index(slot)
    dot = do_s.index(slot)
    sums = lse_s.index(slot).load(column)
    logits = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
    dp = warpgroup_mma(vt, dot.permute((1, 0)), none, use_acc=False, is_async=True)
    if BIAS:
        logits += widened(bias_s.index(slot * 2 + GROUP).permute((1, 0)).load(mma))
    if SHADED:
        logits += shade[:, None]
    if CAUSAL:
        j = at[1] + gl.arange(0, ROWS, layout=gl.SliceLayout(1, mma))
        i = at[2] + gl.arange(0, ROWS, layout=column)
        logits = gl.where(j[:, None] <= i[None, :], logits, float("-inf"))
    p = gl.exp2(logits * LOG2E - sums[None, :])
    pt = gl.convert_layout(p.to(q_s.dtype), left, assert_trivial=True)
    acc_v = warpgroup_mma(pt, dot, acc_v, use_acc=t > 0, is_async=True)
    shift = delta_s.index(slot).load(column)
    shifted = warpgroup_mma_wait(num_outstanding=1, deps=(dp,)) - shift[None, :]
    dst = (p * shifted).to(q_s.dtype)
    acc_k = warpgroup_mma(gl.convert_layout(dst, left, assert_trivial=True), qt, acc_k, use_acc=t > 0, is_async=True)
    if MORE:
        after, lap = _place(n + 1, SLOTS)
        mbarrier.wait(full.index(after), lap)
        s = warpgroup_mma(kt, q_s.index(after).permute((1, 0)), none, use_acc=False, is_async=True)
    _write(dst, out_s, written, ds, at, PLACES)
    acc_k, acc_v = warpgroup_mma_wait(num_outstanding=1 if MORE else 0, deps=(acc_k, acc_v))
    mbarrier.arrive(empty.index(slot), count=1)
    return s, acc_k, acc_v


@gluon.jit
def _write_both(acc_k, acc_v, out_s, written, dk, dv, tile, b_first, heads, key_tiles, GROUP: gl.constexpr,
                PLACES: gl.constexpr):  # fmt: skip
    """dk and dv of a tile."""
    pair = tile // key_tiles
    at = [b_first + pair // heads, tile % key_tiles * 2 * ROWS + GROUP * ROWS, pair % heads * WIDTH]
    _write(acc_v.to(out_s.dtype), out_s, written, dv, at, PLACES)
    _write(acc_k.to(out_s.dtype), out_s, written + 1, dk, at, PLACES)


@gluon.jit
def _group(mask, dk, dv, ds, q_s, k_s, v_s, bias_s, do_s, lse_s, delta_s, out_s, full, empty, loaded, taken, smb, smj,
           b_first, tiles, heads, key_tiles, blocks, keys, GROUP: gl.constexpr, BIAS: gl.constexpr, MASK: gl.constexpr,
           CAUSAL: gl.constexpr, EVEN_J: gl.constexpr, SLOTS: gl.constexpr, PLACES: gl.constexpr):  # fmt: skip
    """dk, dv and dSᵀ of one group's 64 keys of every tile."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    SHADED: gl.constexpr = MASK or not EVEN_J
    none = gl.zeros((ROWS, WIDTH), gl.float32, layout=mma)
    acc_k = none
    acc_v = none
    n = gl.to_tensor(0).to(gl.uint32)  # blocks of queries so far
    written = gl.to_tensor(0).to(gl.uint32)
    turn = 0
    first = gl.program_id(0)
    for tile in range(first, tiles, gl.num_programs(0)):
        j0 = tile % key_tiles * 2 * ROWS + GROUP * ROWS
        pair = tile // key_tiles
        mbarrier.wait(loaded, turn)
        kt = k_s.index(GROUP).load(left)
        vt = v_s.index(GROUP).load(left)
        turn ^= 1
        shade = _shade(mask, smb, smj, b_first + pair // heads, j0, keys, MASK, EVEN_J, gl.SliceLayout(1, mma))
        slot, lap = _place(n, SLOTS)
        mbarrier.wait(full.index(slot), lap)
        s = warpgroup_mma(kt, q_s.index(slot).permute((1, 0)), none, use_acc=False, is_async=True)
        fence_async_shared()  # v may still be on its way into the registers
        mbarrier.arrive(taken, count=1)
        if tile > first:
            _write_both(acc_k, acc_v, out_s, written, dk, dv, tile - gl.num_programs(0), b_first, heads, key_tiles, GROUP,
                        PLACES)  # fmt: skip
            written += 2
        for t in range(blocks - 1):
            s, acc_k, acc_v = _step(
                kt, vt, shade, s, acc_k, acc_v, q_s, bias_s, do_s, lse_s, delta_s, out_s, ds, [pair, j0, t * ROWS],
                full, empty, n, t, written, True, GROUP, BIAS, SHADED, CAUSAL, SLOTS, PLACES, mma,
            )  # fmt: skip
            n += 1
            written += 1
        s, acc_k, acc_v = _step(
            kt, vt, shade, s, acc_k, acc_v, q_s, bias_s, do_s, lse_s, delta_s, out_s, ds, [pair, j0, (blocks - 1) * ROWS],
            full, empty, n, blocks - 1, written, False, GROUP, BIAS, SHADED, CAUSAL, SLOTS, PLACES, mma,
        )  # fmt: skip
        n += 1
        written += 1
    last = first + (tiles - 1 - first) // gl.num_programs(0) * gl.num_programs(0)
    _write_both(acc_k, acc_v, out_s, written, dk, dv, last, b_first, heads, key_tiles, GROUP, PLACES)
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["b_first"])
def _attention_keys_hopper(
    q, k, v, bias, mask, do, lse, delta, dk, dv, ds, smb, smj, b_first, tiles, heads, key_tiles, blocks, queries, keys,
    BIAS: gl.constexpr, MASK: gl.constexpr, CAUSAL: gl.constexpr, EVEN_I: gl.constexpr, EVEN_J: gl.constexpr,
    SLOTS: gl.constexpr, PLACES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """All `tiles`, of 128 keys each; `blocks` of 64 queries, all whole if EVEN_J and EVEN_I."""
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], q.dtype)
    q_s = gl.allocate_shared_memory(q.dtype, [SLOTS, ROWS, WIDTH], square)
    do_s = gl.allocate_shared_memory(q.dtype, [SLOTS, ROWS, WIDTH], square)
    bias_s = gl.allocate_shared_memory(q.dtype, [2 * SLOTS if BIAS else 2, ROWS, ROWS], square)
    k_s = gl.allocate_shared_memory(q.dtype, [2, ROWS, WIDTH], square)
    v_s = gl.allocate_shared_memory(q.dtype, [2, ROWS, WIDTH], square)
    out0 = gl.allocate_shared_memory(q.dtype, [PLACES, ROWS, WIDTH], square)
    out1 = gl.allocate_shared_memory(q.dtype, [PLACES, ROWS, WIDTH], square)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lse_s = gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS], plain)
    delta_s = gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS], plain)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    signals = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(SLOTS):
        mbarrier.init(full.index(n), count=2)  # the tiles, and lse and Δ
        mbarrier.init(empty.index(n), count=2)
    loaded, taken = signals.index(0), signals.index(1)
    mbarrier.init(loaded, count=1)
    mbarrier.init(taken, count=2)
    gl.warp_specialize(
        [
            (_group, (mask, dk, dv, ds, q_s, k_s, v_s, bias_s, do_s, lse_s, delta_s, out0, full, empty, loaded, taken,
                      smb, smj, b_first, tiles, heads, key_tiles, blocks, keys, 0, BIAS, MASK, CAUSAL, EVEN_J, SLOTS,
                      PLACES)),
            (_group, (mask, dk, dv, ds, q_s, k_s, v_s, bias_s, do_s, lse_s, delta_s, out1, full, empty, loaded, taken,
                      smb, smj, b_first, tiles, heads, key_tiles, blocks, keys, 1, BIAS, MASK, CAUSAL, EVEN_J, SLOTS,
                      PLACES)),
            (_fetch, (q, k, v, bias, do, q_s, k_s, v_s, bias_s, do_s, full, empty, loaded, taken, b_first, tiles, heads,
                      key_tiles, blocks, BIAS, SLOTS)),
            (_fetch_sums, (lse, delta, lse_s, delta_s, full, empty, b_first, tiles, heads, key_tiles, blocks, queries,
                           EVEN_I, SLOTS)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )  # fmt: skip


def fits_keys_hopper(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_bias: Tensor | None, mask: Tensor | None,
    lengths: Tensor | None, seed: Tensor | None, do: Tensor,
) -> bool:  # fmt: skip
    """Heads of 64, a mask of keys at most, and nothing that the copy engine cannot read."""
    tensors = (q, k, v, do)
    plain = key_bias is None and lengths is None and seed is None and (mask is None or mask.dim() == 2)
    kinds = {t.dtype for t in (*tensors, *(() if bias is None else (bias,)))}
    return (
        plain
        and len(kinds) == 1
        and v.dtype in (torch.bfloat16, torch.float16)
        and min(q.shape[2], k.shape[2]) > 0
        and all(t.shape[0] == v.shape[0] and side_by_side(t) for t in tensors)
        and tune.gluon()
        and (bias is None or tma_ready(bias))
    )


def launch_keys_hopper(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, causal: bool, do: Tensor, lse: Tensor,
    delta: Tensor, dk: Tensor, dv: Tensor, ds: Tensor, first: int, count: int,
) -> None:  # fmt: skip
    """Fill dk and dv of `count` examples from the `first` on, and ds [at least count, heads, keys, queries] from 0 on.

    bias: [heads, queries, keys]. Its rows and those of ds lie multiples of 8 numbers apart; dk and dv lie in memory as [batch,
    length, heads, 64].
    """
    _, heads, queries, _ = q.shape
    keys = k.shape[2]
    key_tiles = triton.cdiv(keys, 128)
    tiles = count * heads * key_tiles
    block = [1, 64, 64]
    qs = describe(merged(q), block)
    _attention_keys_hopper[(min(tiles, tune.processors()),)](
        qs, *(describe(merged(t), block) for t in (k, v)), qs if bias is None else describe(bias, block),
        lse if mask is None else mask, describe(merged(do), block), lse, delta,
        *(describe(merged(t), block) for t in (dk, dv)), describe(ds.flatten(0, 1), block),
        *((0, 0) if mask is None else mask.stride()), first, tiles, heads, key_tiles, triton.cdiv(queries, 64), queries, keys,
        BIAS=bias is not None, MASK=mask is not None, CAUSAL=causal, EVEN_I=queries % 64 == 0, EVEN_J=keys % 128 == 0,
        SLOTS=4, PLACES=3, num_warps=4,
    )  # fmt: skip
