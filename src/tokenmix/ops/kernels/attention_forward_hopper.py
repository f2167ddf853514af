"""softmax(q·kᵀ + bias)·v for Hopper GPUs, written in Gluon: copies, products and exponentials at the same time.

    S = q kᵀ + bias[h],  out = softmax(S over visible keys) v,  lse = log₂ Σ exp S

A program keeps the bias of 128 queries of a head, all keys, in shared memory and walks over examples, so that the bias is
read once for all of them; a team of programs, one per 128 queries, takes its share of the pairs (head, example), so that k
and v come from the cache. Two groups of four warps have 64 queries each. The logits start from the bias, and while the
matrix units multiply one block's weights by v, the next block's are made, over the border between two pairs as well; the
groups start their products in turns. A warp of its own copies. What lies past the last query or key comes as zeros, and such
keys are not seen.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

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

from tokenmix.ops.kernels.hopper import describe, merged, side_by_side, widened
from tokenmix.ops.kernels.tune import gluon as runs_here
from tokenmix.ops.kernels.tune import processors

WIDTH = gl.constexpr(64)  # of a head
ROWS = gl.constexpr(64)  # queries of a group of warps
KEYS = gl.constexpr(128)  # in a block
LOG2E = gl.constexpr(1.4426950408889634)
LOWEST = gl.constexpr(-1.0e30)  # below every logit, yet finite: a row that sees nothing has no NaN in it
# in assembly that is not to be moved: between two products that run at once, rounding would part them
ROUND_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
ROUND_FP16 = gl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")


@gluon.jit
def _fetch(q, k, v, bias, q_s, k_s, v_s, bias_s, full, empty, start, stop, batch, queries, i0,
           BIAS: gl.constexpr, BLOCKS: gl.constexpr, SLOTS: gl.constexpr, AHEAD: gl.constexpr):  # fmt: skip
    """A block of k and the block of v before it into each slot, as soon as both groups are done with what was there.

    With a pair's first k comes its q, with a head's first pair the bias.
    """
    n = 0
    before = start
    for pair in range(start, stop):
        head = pair // batch
        fresh = (pair == start) | (pair % batch == 0)
        turn = head - start // batch
        for block in gl.static_range(BLOCKS):
            slot = n % SLOTS
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (n // SLOTS & 1) ^ 1)
            if BIAS:
                mbarrier.expect(bar, (2 * KEYS * WIDTH + 2 * ROWS * KEYS) * 2, pred=fresh & (block > 0))
                mbarrier.expect(bar, (2 * KEYS * WIDTH + 2 * ROWS * (KEYS + WIDTH)) * 2, pred=fresh & (block == 0))
                for group in gl.static_range(2):
                    row = [head * queries + i0 + group * ROWS, block * KEYS]
                    held = bias_s.index((turn % AHEAD * BLOCKS + block) * 2 + group)
                    tma.async_copy_global_to_shared(bias, row, bar, held, pred=fresh)
            else:
                fresh = False
            if block == 0:
                mbarrier.expect(bar, (2 * KEYS * WIDTH + 2 * ROWS * WIDTH) * 2, pred=not fresh)
                for group in gl.static_range(2):
                    at = [pair % batch, i0 + group * ROWS, head * WIDTH]
                    tma.async_copy_global_to_shared(q, at, bar, q_s.index((pair - start) % AHEAD * 2 + group))
            else:
                mbarrier.expect(bar, 2 * KEYS * WIDTH * 2, pred=not fresh)
            tma.async_copy_global_to_shared(k, [pair % batch, block * KEYS, head * WIDTH], bar, k_s.index(slot))
            last = [before % batch, (block + BLOCKS - 1) % BLOCKS * KEYS, before // batch * WIDTH]
            tma.async_copy_global_to_shared(v, last, bar, v_s.index(slot))
            before = pair
            n += 1
    bar = full.index(n % SLOTS)
    mbarrier.wait(empty.index(n % SLOTS), (n // SLOTS & 1) ^ 1)
    mbarrier.expect(bar, KEYS * WIDTH * 2)
    last = [before % batch, (BLOCKS - 1) * KEYS, before // batch * WIDTH]
    tma.async_copy_global_to_shared(v, last, bar, v_s.index(n % SLOTS))


@gluon.jit
def _begin(bias_s, mask, pair, batch, keys, i0, smb, smj, block: gl.constexpr, index, GROUP: gl.constexpr,
           BIAS: gl.constexpr, MASK: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr,
           layout: gl.constexpr):  # fmt: skip
    """What the logits of a block start from. WHOLE: none of its keys is past the last."""
    if BIAS:
        s = widened(bias_s.index(index * 2 + GROUP).load(layout))
    else:
        s = gl.zeros((ROWS, KEYS), gl.float32, layout=layout)
    if MASK:
        j = block * KEYS + gl.arange(0, KEYS, layout=gl.BlockedLayout([1], [32], [4], [0]))
        if WHOLE:
            seen = gl.load(mask + (pair % batch).to(gl.int64) * smb + j * smj) != 0
        else:
            seen = gl.load(mask + (pair % batch).to(gl.int64) * smb + j * smj, mask=j < keys, other=0) != 0
        s += gl.convert_layout(gl.where(seen, 0.0, float("-inf")), gl.SliceLayout(0, layout))[None, :]
    j = block * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, layout))
    if CAUSAL:
        i = i0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        s = gl.where(j[None, :] <= (i if WHOLE else gl.minimum(i, keys - 1))[:, None], s, float("-inf"))
    elif not WHOLE and not MASK:
        s = gl.where((j < keys)[None, :], s, float("-inf"))
    return s


@gluon.jit
def _halved(s):
    """The greater of the numbers in the left and in the right half of each row."""
    return gl.maximum(*gl.split(gl.permute(gl.reshape(s, (ROWS, 2, s.shape[1] // 2)), (0, 2, 1))))


@gluon.jit
def _weigh(s, top):
    """Weights of a block's keys, their sum and the greatest logit up to here, which is what they are relative to."""
    most = gl.convert_layout(gl.max(_halved(_halved(s)), 1), top.type.layout, assert_trivial=True)
    top = gl.maximum(top, most * LOG2E)
    p = gl.exp2(s * LOG2E - top[:, None])
    return p, gl.sum(p, 1), top


@gluon.jit
def _rounded(p, dtype: gl.constexpr, layout: gl.constexpr):
    """The weights as the left operand of a product."""
    if dtype == gl.bfloat16:
        w = gl.inline_asm_elementwise(ROUND_BF16, "=r,f,f", [p], gl.bfloat16, False, 2)
    else:
        w = gl.inline_asm_elementwise(ROUND_FP16, "=r,f,f", [p], gl.float16, False, 2)
    return gl.convert_layout(w, layout, assert_trivial=True)


@gluon.jit
def _attend(
    mask, lse, out, q_s, k_s, v_s, bias_s, out_s, full, empty, turns, start, stop, batch, heads, queries, keys, i0,
    smb, smj, GROUP: gl.constexpr, BIAS: gl.constexpr, MASK: gl.constexpr, CAUSAL: gl.constexpr, EVEN_I: gl.constexpr,
    EVEN_J: gl.constexpr, BLOCKS: gl.constexpr, SLOTS: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """out and lse of 64 queries of every pair."""
    across: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    along: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, across, 2)
    weights: gl.constexpr = gl.DotOperandLayout(0, along, 2)
    row: gl.constexpr = gl.SliceLayout(1, across)
    BEGUN: gl.constexpr = BIAS or MASK or CAUSAL or not EVEN_J  # do logits start from more than 0?
    WHOLE: gl.constexpr = EVEN_J or BLOCKS > 1  # the first block
    i0 += GROUP * ROWS
    lowest = gl.full((ROWS,), LOWEST, gl.float32, layout=row)

    mbarrier.wait(full.index(0), 0)
    q = q_s.index(GROUP).load(left)
    s = _begin(bias_s, mask, start, batch, keys, i0, smb, smj, 0, 0, GROUP, BIAS, MASK, CAUSAL, WHOLE, across)
    s = warpgroup_mma(q, k_s.index(0).permute((1, 0)), s, use_acc=BEGUN, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
    mbarrier.arrive(empty.index(0), count=1)
    p, total, top = _weigh(s, lowest)
    w = _rounded(p, q_s.dtype, weights)
    n = 1
    for pair in range(start, stop):
        o = gl.zeros((ROWS, WIDTH), gl.float32, layout=along)
        for block in gl.static_range(BLOCKS):
            slot = n % SLOTS
            phase = n // SLOTS & 1
            mbarrier.wait(full.index(slot), phase)
            if block + 1 < BLOCKS:
                index = (pair // batch - start // batch) % AHEAD * BLOCKS + block + 1
                s = _begin(bias_s, mask, pair, batch, keys, i0, smb, smj, block + 1, index, GROUP, BIAS, MASK, CAUSAL,
                           EVEN_J or block + 2 < BLOCKS, across)  # fmt: skip
            else:  # the next pair's first block; past the last pair, whatever is there is multiplied, and not used
                q = q_s.index((pair + 1 - start) % AHEAD * 2 + GROUP).load(left)
                index = ((pair + 1) // batch - start // batch) % AHEAD * BLOCKS
                s = _begin(bias_s, mask, pair + 1, batch, keys, i0, smb, smj, 0, index, GROUP, BIAS, MASK, CAUSAL, WHOLE,
                           across)  # fmt: skip
            mbarrier.wait(turns.index(GROUP), (n + GROUP) & 1)
            s = warpgroup_mma(q, k_s.index(slot).permute((1, 0)), s, use_acc=BEGUN, is_async=True)
            o = warpgroup_mma(w, v_s.index(slot), o, use_acc=block > 0, is_async=True)
            mbarrier.arrive(turns.index(1 - GROUP), count=1)
            s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
            if block + 1 < BLOCKS:
                p, sums, higher = _weigh(s, top)
            else:
                p, sums, higher = _weigh(s, lowest)
            # is over, but a border that the assembler does not move the next wait across, before the weights
            mbarrier.wait(full.index(slot), phase)
            o, w = warpgroup_mma_wait(num_outstanding=0, deps=(o, w))
            mbarrier.arrive(empty.index(slot), count=1)
            if block + 1 < BLOCKS:
                shrink = gl.exp2(top - higher)
                o *= gl.convert_layout(shrink, gl.SliceLayout(1, along), assert_trivial=True)[:, None]
                total = total * shrink + sums
            else:
                whole = total
                if MASK:
                    whole = gl.where(total > 0, total, 1.0)
                made = o * gl.convert_layout(1 / whole, gl.SliceLayout(1, along), assert_trivial=True)[:, None]
                tma.store_wait(pendings=0)
                gl.barrier()
                out_s.store(made.to(out_s.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(out, [pair % batch, i0, pair // batch * WIDTH], out_s)
                logs = top + gl.log2(whole)
                if MASK:  # +∞ for a row that sees nothing, so that its weights are 0 on the way back
                    logs = gl.where(total > 0, logs, float("inf"))
                at = (pair % batch * heads + pair // batch).to(gl.int64) * queries + i0
                i = gl.arange(0, ROWS, layout=row)
                if EVEN_I:
                    gl.store(lse + at + i, logs)
                else:
                    gl.store(lse + at + i, logs, mask=i0 + i < queries)
                total = sums
            top = higher
            w = _rounded(p, q_s.dtype, weights)
            n += 1
    tma.store_wait(pendings=0)


@gluon.jit
def _forward_hopper(
    q, k, v, bias, mask, out, lse, pairs, share, batch, heads, queries, keys, smb, smj,
    BIAS: gl.constexpr, MASK: gl.constexpr, CAUSAL: gl.constexpr, EVEN_I: gl.constexpr, EVEN_J: gl.constexpr,
    BLOCKS: gl.constexpr, SLOTS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """128 queries of `share` of the pairs (head, example). EVEN_I, EVEN_J: all tiles of queries, of keys, are whole."""
    tiles = gl.cdiv(queries, 2 * ROWS)
    i0 = gl.program_id(0) % tiles * 2 * ROWS
    start = gl.program_id(0) // tiles * share
    stop = gl.minimum(start + share, pairs)
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, WIDTH], q.dtype)
    AHEAD: gl.constexpr = (SLOTS + BLOCKS - 1) // BLOCKS  # pairs, or heads, to which the slots may belong
    HELD: gl.constexpr = 2 * AHEAD * BLOCKS if BIAS else 2
    q_s = gl.allocate_shared_memory(q.dtype, [2 * AHEAD, ROWS, WIDTH], tile)
    out_s = gl.allocate_shared_memory(q.dtype, [2, ROWS, WIDTH], tile)
    k_s = gl.allocate_shared_memory(q.dtype, [SLOTS, KEYS, WIDTH], tile)
    v_s = gl.allocate_shared_memory(q.dtype, [SLOTS, KEYS, WIDTH], tile)
    bias_s = gl.allocate_shared_memory(q.dtype, [HELD, ROWS, KEYS], tile)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(SLOTS):
        mbarrier.init(full.index(n), count=1)
        mbarrier.init(empty.index(n), count=2)
    for n in gl.static_range(2):
        mbarrier.init(turns.index(n), count=1)
    gl.warp_specialize(
        [
            (_attend, (mask, lse, out, q_s, k_s, v_s, bias_s, out_s.index(0), full, empty, turns, start, stop, batch,
                       heads, queries, keys, i0, smb, smj, 0, BIAS, MASK, CAUSAL, EVEN_I, EVEN_J, BLOCKS, SLOTS,
                       AHEAD)),
            (_attend, (mask, lse, out, q_s, k_s, v_s, bias_s, out_s.index(1), full, empty, turns, start, stop, batch,
                       heads, queries, keys, i0, smb, smj, 1, BIAS, MASK, CAUSAL, EVEN_I, EVEN_J, BLOCKS, SLOTS,
                       AHEAD)),
            (_fetch, (q, k, v, bias, q_s, k_s, v_s, bias_s, full, empty, start, stop, batch, queries, i0, BIAS, BLOCKS,
                      SLOTS, AHEAD)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def _describe_bias(bias: Tensor) -> Any:
    """A descriptor for blocks [64, 128] of the bias [heads, queries, keys] as rows of one matrix.

    Blocks at the end of a head reach into the next one's rows, which is for queries that do not exist.
    """
    heads, queries, keys = bias.shape
    if not bias.is_contiguous() or keys % 8 or bias.data_ptr() % 16:  # a copy that TMA can read
        bias = bias.new_empty(heads, queries, triton.cdiv(keys, 8) * 8)[..., :keys].copy_(bias)
    return describe(bias, [64, 128], [heads * queries, keys], [bias.stride(1), 1])


def fits_forward_hopper(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, out: Tensor, lse: Tensor
) -> bool:
    """Can `launch_forward_hopper` take these tensors?"""
    heads, keys, _ = v.shape[1:]
    queries = q.shape[2]
    all_alike = q.dtype == k.dtype == v.dtype == out.dtype and v.dtype in (torch.bfloat16, torch.float16)
    sizes = 0 < keys <= 512 and 0 < queries <= 128 * processors() and q.shape[0] == k.shape[0] == v.shape[0]
    plain = lse.is_contiguous() and (mask is None or mask.dim() == 2)
    if bias is not None:
        plain = plain and bias.shape == (heads, queries, keys) and bias.dtype == v.dtype
    return runs_here() and all_alike and sizes and plain and all(map(side_by_side, (q, k, v, out)))


def launch_forward_hopper(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, out: Tensor, lse: Tensor, causal: bool
) -> None:
    """Fill out [batch, heads, queries, 64] and lse [batch, heads, queries] in float32, in units of log₂.

    bias [heads, queries, keys]; mask [batch, keys], where what is not 0 is seen; causal: query i sees keys j ≤ i.
    """
    batch, heads, keys, _ = v.shape
    queries = q.shape[2]
    tiles, pairs = triton.cdiv(queries, 128), heads * batch
    share = triton.cdiv(pairs, processors() // tiles)
    blocks = triton.cdiv(keys, 128)
    _forward_hopper[(triton.cdiv(pairs, share) * tiles,)](
        describe(merged(q), [1, 64, 64]), *(describe(merged(t), [1, 128, 64]) for t in (k, v)),
        describe(merged(q), [1, 64, 64]) if bias is None else _describe_bias(bias), lse if mask is None else mask,
        describe(merged(out), [1, 64, 64]), lse, pairs, share, batch, heads, queries, keys,
        *((0, 0) if mask is None else mask.stride()),
        BIAS=bias is not None, MASK=mask is not None, CAUSAL=causal, EVEN_I=queries % 128 == 0, EVEN_J=keys % 128 == 0,
        BLOCKS=blocks, SLOTS=3 if blocks == 3 or bias is None else 2, num_warps=4,
    )  # fmt: skip
