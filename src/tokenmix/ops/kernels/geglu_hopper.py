"""The gated feed-forward network's products for Hopper GPUs, written in Gluon: what is elementwise runs beside them.

    a, b = x W₁ᵀ, x W₂ᵀ,  h = gelu(a) ⊙ b                           gelu in its tanh form: a p, p = σ(2u),
    dh = g W₃,  da = dh ⊙ b ⊙ gelu'(a),  db = dh ⊙ gelu(a)          u = √(2/π) (a + 0.044715 a³)

One kernel does the first line, or the second, which needs no dh in memory and writes h anew. Both ways it multiplies rows
[tokens, width] by rows of weights [outputs, width] into tiles; forward, a tile has as many columns of b as of a.

A program is two or three groups of four warps that share a tile's weights and have rows of their own. Each group starts
a few steps after the one before, so that one's epilogue runs beside the products of the others. Done with a block of its
rows, a group sends for the next that fits there; the last group for weights, too. The epilogue's numbers go straight
between registers and memory, 16 bytes at a time: a thread holds every fourth pair of a product's columns, and the copy
engine sorts the rows of the weights such that these columns of the product are neighbours in memory.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.experimental.gluon.language as gl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from tokenmix.ops.kernels.hopper import describe
from tokenmix.ops.kernels.tune import Config, choose, processors

ROWS = gl.constexpr(64)  # of one matrix instruction
STEP = gl.constexpr(64)  # of the width
PIECE = gl.constexpr(32)  # columns, of which a thread holds 8 in a row
EIGHTS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)


@gluon.jit
def _fetch_rows(x, rows, full, n, first, tiles, step, COLUMNS: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr,
                SUBS: gl.constexpr, BLOCKS: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """One group's rows for the n-th of its steps; none after the last."""
    tile = first + n // BLOCKS * step
    i = (tile // COLUMNS * GROUPS + GROUP) * (SUBS * ROWS)
    slot = GROUP * SLOTS + n % SLOTS
    wanted = tile < tiles
    mbarrier.expect(full.index(slot), SUBS * ROWS * STEP * 2, pred=wanted)
    for s in gl.static_range(SUBS):
        at = [i + s * ROWS, n % BLOCKS * STEP]
        tma.async_copy_global_to_shared(x, at, full.index(slot), rows.index(slot * SUBS + s), pred=wanted)


@gluon.jit
def _fetch_weights(w, halves, full, n, first, tiles, step, COLUMNS: gl.constexpr, WIDTH: gl.constexpr,
                   BACK: gl.constexpr, BN: gl.constexpr, BLOCKS: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """The weights for the n-th step in two halves, forward those of W₁ and W₂."""
    tile = first + n // BLOCKS * step
    HALF: gl.constexpr = BN // 2
    top = tile % COLUMNS * (BN if BACK else HALF)
    low = top + (HALF if BACK else WIDTH)
    k = n % BLOCKS * STEP
    slot = n % SLOTS
    bar = full.index(slot)
    wanted = tile < tiles
    mbarrier.expect(bar, BN * STEP * 2, pred=wanted)
    tma.async_copy_global_to_shared(w, [top // PIECE, 0, 0, 0, k], bar, halves.index(2 * slot), pred=wanted)
    tma.async_copy_global_to_shared(w, [low // PIECE, 0, 0, 0, k], bar, halves.index(2 * slot + 1), pred=wanted)


@gluon.jit
def _go_on(x, w, rows, halves, x_full, w_full, w_empty, n, first, tiles, step, GROUP: gl.constexpr, GROUPS: gl.constexpr,
           BACK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr, SUBS: gl.constexpr, BN: gl.constexpr,
           X_SLOTS: gl.constexpr, W_SLOTS: gl.constexpr, COLUMNS: gl.constexpr):  # fmt: skip
    """A group's n-th step is done: what is needed later takes the place of what it needed."""
    gl.barrier()
    _fetch_rows(x, rows, x_full, n + X_SLOTS, first, tiles, step, COLUMNS, GROUP, GROUPS, SUBS, BLOCKS, X_SLOTS)
    if GROUP + 1 < GROUPS:
        mbarrier.arrive(w_empty.index(n % W_SLOTS), count=1)
    else:
        mbarrier.wait(w_empty.index(n % W_SLOTS), n // W_SLOTS & 1)
        _fetch_weights(w, halves, w_full, n + W_SLOTS, first, tiles, step, COLUMNS, WIDTH, BACK, BN, BLOCKS, W_SLOTS)


@gluon.jit
def _halves(s, HALF: gl.constexpr):
    """The first and the last columns of s [64, 2 · HALF]."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    left, right = gl.split(gl.permute(gl.reshape(s, (ROWS, 2, HALF)), (0, 2, 1)))
    left = gl.convert_layout(left, layout, assert_trivial=True)
    return left, gl.convert_layout(right, layout, assert_trivial=True)


@gluon.jit
def _pieces(s, BN: gl.constexpr):
    """The columns of s [64, BN] in pieces [64, 32]."""
    parts = (s,)
    for level in gl.static_range(5):
        if BN >> level > PIECE:
            halves = ()
            for n in gl.static_range(len(parts)):
                halves += _halves(parts[n], BN >> level + 1)
            parts = halves
    return parts


@gluon.jit
def _in_order(s):
    """A piece of a product, its columns in the order of memory: 8 j + 2 q + r there is 8 q + 2 j + r here."""
    s = gl.reshape(gl.permute(gl.reshape(s, (ROWS, 4, 4, 2)), (0, 2, 1, 3)), (ROWS, PIECE))
    return gl.convert_layout(s, EIGHTS)


@gluon.jit
def _cdf(a, s):
    """p = σ(2u) = 1 / (1 + 2^(−2u log₂e)) of a and s = a²."""
    return gl.inline_asm_elementwise(
        "{ .reg .f32 t; ex2.approx.ftz.f32 t, $1; add.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t; }",
        "=f,f", [a * (s * -0.10294324 - 2.3022082)], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _forward(a, b, both_at, h_at, mask, WIDTH: gl.constexpr):
    h = a * _cdf(a, a * a) * b
    gl.store(both_at, a.to(both_at.dtype.element_ty), mask=mask)
    gl.store(both_at + WIDTH, b.to(both_at.dtype.element_ty), mask=mask)
    gl.store(h_at, h.to(h_at.dtype.element_ty), mask=mask)


@gluon.jit
def _backward(dh, a, b, both_at, h_at, mask, WIDTH: gl.constexpr):
    a = a.to(gl.float32)
    b = b.to(gl.float32)
    s = a * a
    p = _cdf(a, s)
    gelu = a * p
    slope = p + (p - p * p) * (a * (s * 0.21406720 + 1.5957691))  # p + p (1 − p) a · 2u'
    gl.store(h_at, (gelu * b).to(h_at.dtype.element_ty), mask=mask)
    gl.store(both_at, (dh * b * slope).to(both_at.dtype.element_ty), mask=mask)
    gl.store(both_at + WIDTH, (dh * gelu).to(both_at.dtype.element_ty), mask=mask)


@gluon.jit
def _prefetch(given, left, WIDTH: gl.constexpr, SUBS: gl.constexpr, BN: gl.constexpr):
    """Call a group's next a and b into the L2 cache."""
    both: gl.constexpr = gl.BlockedLayout([1, 1], [16, 2], [4, 1], [1, 0])
    i = gl.arange(0, SUBS * ROWS, layout=gl.SliceLayout(1, both))
    half = gl.arange(0, 2, layout=gl.SliceLayout(0, both))
    at = given + (gl.minimum(i, left - 1)[:, None] * (2 * WIDTH) + half[None, :] * WIDTH)
    for c in gl.static_range(0, BN, 64):  # lines of 128 bytes
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at + c], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def _read(at, i, left, m: gl.constexpr, PIECES: gl.constexpr, WIDTH: gl.constexpr):
    """The m-th pieces of a and b."""
    at += m // PIECES * ROWS * 2 * WIDTH + m % PIECES * PIECE
    mask = (i < left - m // PIECES * ROWS)[:, None]
    return gl.load(at, mask=mask, other=0.0), gl.load(at + WIDTH, mask=mask, other=0.0)


@gluon.jit
def _finish(made, read, given_at, both_at, h_at, i, left, BACK: gl.constexpr, WIDTH: gl.constexpr, PIECES: gl.constexpr,
            COUNT: gl.constexpr, AHEAD: gl.constexpr):  # fmt: skip
    """The epilogue of a group's product, which comes in pieces."""
    for m in gl.static_range(COUNT):
        mask = (i < left - m // PIECES * ROWS)[:, None]
        to_both = both_at + (m // PIECES * ROWS * 2 * WIDTH + m % PIECES * PIECE)
        to_h = h_at + (m // PIECES * ROWS * WIDTH + m % PIECES * PIECE)
        if BACK:
            if m + AHEAD < COUNT:
                read += _read(given_at, i, left, m + AHEAD, PIECES, WIDTH)
            _backward(_in_order(made[m]), read[2 * m], read[2 * m + 1], to_both, to_h, mask, WIDTH)
        else:
            a = _in_order(made[m + m // PIECES * PIECES])
            _forward(a, _in_order(made[m + (m // PIECES + 1) * PIECES]), to_both, to_h, mask, WIDTH)


@gluon.jit
def _multiply(x, w, given, both, h, rows, weights, x_full, w_full, w_empty, started, first, tiles, step, tokens,
              GROUP: gl.constexpr, GROUPS: gl.constexpr, BACK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr,
              SUBS: gl.constexpr, BN: gl.constexpr, X_SLOTS: gl.constexpr, W_SLOTS: gl.constexpr, LAG: gl.constexpr,
              AHEAD: gl.constexpr):  # fmt: skip
    """One group's rows of every tile. AHEAD: pieces of a and b that are read before the product."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    PIECES: gl.constexpr = BN // PIECE if BACK else BN // PIECE // 2  # next to each other
    COLUMNS: gl.constexpr = WIDTH // (PIECES * PIECE)
    LAST: gl.constexpr = GROUP + 1 == GROUPS
    half_layout: gl.constexpr = w.layout
    halves = weights._reinterpret(x.dtype, [2 * W_SLOTS, BN // 2 // PIECE, 4, 4, 2, STEP], half_layout)
    for n in gl.static_range(X_SLOTS):
        _fetch_rows(x, rows, x_full, n, first, tiles, step, COLUMNS, GROUP, GROUPS, SUBS, BLOCKS, X_SLOTS)
    if LAST:
        for n in gl.static_range(W_SLOTS):
            _fetch_weights(w, halves, w_full, n, first, tiles, step, COLUMNS, WIDTH, BACK, BN, BLOCKS, W_SLOTS)
    i = gl.arange(0, ROWS, layout=gl.SliceLayout(1, EIGHTS))
    j = gl.arange(0, PIECE, layout=gl.SliceLayout(0, EIGHTS))
    in_both = i[:, None] * (2 * WIDTH) + j[None, :]
    in_h = i[:, None] * WIDTH + j[None, :]
    n = 0
    turn = 0
    for tile in range(first, tiles, step):
        top = (tile // COLUMNS * GROUPS + GROUP) * (SUBS * ROWS)
        c = tile % COLUMNS * (PIECES * PIECE)
        corner = top.to(gl.int64) * (2 * WIDTH) + c
        left = tokens - top
        read = ()
        if BACK:
            if left > 0:
                _prefetch(given + corner, left, WIDTH, SUBS, BN)
            for m in gl.static_range(AHEAD):
                read += _read(given + corner + in_both, i, left, m, PIECES, WIDTH)
        if GROUP > 0:
            mbarrier.wait(started.index(GROUP - 1), turn)
        acc = gl.zeros((ROWS, BN), gl.float32, layout=mma)
        more = acc
        for k in range(BLOCKS):
            slot = n % W_SLOTS
            place = GROUP * X_SLOTS + n % X_SLOTS
            mbarrier.wait(w_full.index(slot), n // W_SLOTS & 1)
            mbarrier.wait(x_full.index(place), n // X_SLOTS & 1)
            right = weights.index(slot).permute((1, 0))
            acc = warpgroup_mma(rows.index(place * SUBS), right, acc, use_acc=k > 0, is_async=True)
            if SUBS > 1:
                more = warpgroup_mma(rows.index(place * SUBS + 1), right, more, use_acc=k > 0, is_async=True)
                acc, more = warpgroup_mma_wait(num_outstanding=2, deps=(acc, more))
            else:
                acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
            if k > 0:
                _go_on(x, w, rows, halves, x_full, w_full, w_empty, n - 1, first, tiles, step, GROUP, GROUPS, BACK, WIDTH,
                       BLOCKS, SUBS, BN, X_SLOTS, W_SLOTS, COLUMNS)  # fmt: skip
            if not LAST:
                mbarrier.arrive(started.index(GROUP), count=1, pred=k == LAG)
            n += 1
        if SUBS > 1:
            acc, more = warpgroup_mma_wait(num_outstanding=0, deps=(acc, more))
        else:
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        _go_on(x, w, rows, halves, x_full, w_full, w_empty, n - 1, first, tiles, step, GROUP, GROUPS, BACK, WIDTH, BLOCKS,
               SUBS, BN, X_SLOTS, W_SLOTS, COLUMNS)  # fmt: skip
        if left > 0:  # also keeps the epilogue's instructions behind those that fetch
            made = _pieces(acc, BN)
            if SUBS > 1:
                made += _pieces(more, BN)
            given_at = given + corner + in_both
            both_at = both + corner + in_both
            _finish(made, read, given_at, both_at, h + (top.to(gl.int64) * WIDTH + c) + in_h, i, left, BACK, WIDTH, PIECES,
                    SUBS * PIECES, AHEAD)  # fmt: skip
        turn ^= 1


@gluon.jit
def _geglu_hopper(
    x, w, given, both, h, tokens, tiles,
    BACK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr, GROUPS: gl.constexpr, SUBS: gl.constexpr,
    BN: gl.constexpr, X_SLOTS: gl.constexpr, W_SLOTS: gl.constexpr, LAG: gl.constexpr, AHEAD: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """WIDTH: d_ff. SUBS: times 64 rows of a group."""
    tall: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, STEP], x.dtype)
    weights = gl.allocate_shared_memory(x.dtype, [W_SLOTS, BN, STEP], tall)
    rows = gl.allocate_shared_memory(x.dtype, [GROUPS * X_SLOTS * SUBS, ROWS, STEP], x.layout)
    x_full = gl.allocate_shared_memory(gl.int64, [GROUPS * X_SLOTS, 1], mbarrier.MBarrierLayout())
    w_full = gl.allocate_shared_memory(gl.int64, [W_SLOTS, 1], mbarrier.MBarrierLayout())
    w_empty = gl.allocate_shared_memory(gl.int64, [W_SLOTS, 1], mbarrier.MBarrierLayout())
    started = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(GROUPS * X_SLOTS):
        mbarrier.init(x_full.index(n), count=1)
    for n in gl.static_range(W_SLOTS):
        mbarrier.init(w_full.index(n), count=1)
        mbarrier.init(w_empty.index(n), count=GROUPS - 1)
    for n in gl.static_range(GROUPS):
        mbarrier.init(started.index(n), count=1)
    first = gl.program_id(0)
    step = gl.num_programs(0)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (x, w, given, both, h, rows, weights, x_full, w_full, w_empty, started, first, tiles, step,
                             tokens, 0, GROUPS, BACK, WIDTH, BLOCKS, SUBS, BN, X_SLOTS, W_SLOTS, LAG, AHEAD)),
                (_multiply, (x, w, given, both, h, rows, weights, x_full, w_full, w_empty, started, first, tiles, step,
                             tokens, 1, GROUPS, BACK, WIDTH, BLOCKS, SUBS, BN, X_SLOTS, W_SLOTS, LAG, AHEAD)),
            ],
            [4],
            [256],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (x, w, given, both, h, rows, weights, x_full, w_full, w_empty, started, first, tiles, step,
                             tokens, 0, GROUPS, BACK, WIDTH, BLOCKS, SUBS, BN, X_SLOTS, W_SLOTS, LAG, AHEAD)),
                (_multiply, (x, w, given, both, h, rows, weights, x_full, w_full, w_empty, started, first, tiles, step,
                             tokens, 1, GROUPS, BACK, WIDTH, BLOCKS, SUBS, BN, X_SLOTS, W_SLOTS, LAG, AHEAD)),
                (_multiply, (x, w, given, both, h, rows, weights, x_full, w_full, w_empty, started, first, tiles, step,
                             tokens, 2, GROUPS, BACK, WIDTH, BLOCKS, SUBS, BN, X_SLOTS, W_SLOTS, LAG, AHEAD)),
            ],
            [4, 4],
            [168, 168],
        )  # fmt: skip


# groups of warps, times 64 rows of each, columns of a product's tile; blocks of rows and of weights in shared memory
FORWARD: list[Config] = [
    {"GROUPS": 3, "SUBS": 1, "BN": 256, "X_SLOTS": 4, "W_SLOTS": 4, "LAG": 1, "AHEAD": 0},
    {"GROUPS": 2, "SUBS": 2, "BN": 128, "X_SLOTS": 4, "W_SLOTS": 6, "LAG": 3, "AHEAD": 0},
]
BACKWARD: list[Config] = [
    {"GROUPS": 3, "SUBS": 1, "BN": 128, "X_SLOTS": 3, "W_SLOTS": 9, "LAG": 3, "AHEAD": 4},
]


def constants(config: Config, inputs: int, width: int) -> dict[str, Any]:
    """What is constant in a kernel for products with `inputs` terms and `width` columns of h.

    A group waits until the one before is LAG blocks into the same tile, and that one, held back by the places for blocks,
    cannot start its next tile's block LAG before it does: no signal gets lost, however few blocks a tile has.
    """
    steps = inputs // 64
    lag = min(config["LAG"], steps - 1)
    slots = min(config["W_SLOTS"], steps + lag)
    return {**config, "LAG": lag, "W_SLOTS": slots, "WIDTH": width, "BLOCKS": steps, "num_warps": 4}


def _describe_weights(t: Tensor, rows: int) -> Any:
    """A descriptor for blocks of so many rows of t [outputs, width], in an order such that `_in_order` is free."""
    outputs, width = t.shape
    strides = [32 * width, 2 * width, 8 * width, width, 1]
    return describe(t, [rows // 32, 4, 4, 2, 64], [outputs // 32, 4, 4, 2, width], strides)


def _launch(x: Tensor, w: Tensor, given: Tensor, both: Tensor, h: Tensor, back: bool, config: Config) -> None:
    tokens, inputs = x.shape
    width = h.shape[1]
    across = width // config["BN"] if back else 2 * width // config["BN"]
    tiles = triton.cdiv(tokens, config["GROUPS"] * config["SUBS"] * 64) * across
    _geglu_hopper[(min(tiles, processors()),)](
        describe(x, [64, 64]), _describe_weights(w, config["BN"] // 2), given, both, h, tokens, tiles, BACK=back,
        **constants(config, inputs, width),
    )  # fmt: skip


def expand(x: Tensor, w: Tensor, configs: list[Config] = FORWARD) -> tuple[Tensor, Tensor]:
    """[a | b] [tokens, 2 · d_ff] and h [tokens, d_ff] of x [tokens, d_model] and w = [W₁; W₂].

    All are contiguous and of one 16-bit type; d_model is a multiple of 64, d_ff of 256.
    """
    (tokens, inputs), width = x.shape, w.shape[0] // 2
    both, h = x.new_empty(tokens, 2 * width), x.new_empty(tokens, width)

    def launch(config: Config) -> tuple[Tensor, Tensor]:
        _launch(x, w, both, both, h, False, config)
        return both, h

    return launch(choose("geglu", (x.dtype, tokens, inputs, width), configs, launch))


def contract(g: Tensor, both: Tensor, w3t: Tensor, configs: list[Config] = BACKWARD) -> tuple[Tensor, Tensor]:
    """[da | db] and h of g [tokens, d_model], [a | b] and W₃ᵀ [d_ff, d_model]; they are as in `expand`."""
    (tokens, inputs), width = g.shape, w3t.shape[0]
    d_both, h = torch.empty_like(both), g.new_empty(tokens, width)

    def launch(config: Config) -> tuple[Tensor, Tensor]:
        _launch(g, w3t, both, d_both, h, True, config)
        return d_both, h

    return launch(choose("geglu_backward", (g.dtype, tokens, inputs, width), configs, launch))
