"""dW[h, i, j] = Σ_{b, c} ds[b, i, c] m[b, j] x[b, j, c]: the gradient of a mixing matrix, one sum over batch and width.

    plain      ds = r ⊙ g
    compose    ds = r ⊙ g ⊙ (α x − (1 − α))
    gate       ds = r ⊙ g ⊙ u

ds is made from g on the way into the product and written out once, for dx = Wᵀ·ds (and as the gradient of a gate's
addend). The sum over (batch, channels) is split into parts that a second sum adds up: no atomics, the same bits always.
The parts take the steps of the sum in turns, so that together they read whole rows at a time, or each a run of its own.
Σ ds, a bias's gradient, is taken on the way where ds is made; where ds is g itself, in a pass of its own.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmix.ops.kernels import INTERPRETING
from tokenmix.ops.kernels.mix import describe, tma_ready
from tokenmix.ops.kernels.tune import Config, choose, gluon, precision, processors


@triton.jit
def _outer(
    g, own, x, dw, ds, total, alpha, row, mask,
    sgb, sgi, sgc, sob, soi, soc, sxb, sxj, sxc, sdb, sdi, sab, sai, sac, srb, sri, srh, smb, smj,
    batch, queries, keys, width, heads, splits, alpha_value,
    MODE: tl.constexpr, ALPHA: tl.constexpr, WRITE: tl.constexpr, TOTAL: tl.constexpr, ROW: tl.constexpr,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """One tile [BM, BN] of one head's dW over one part of the steps (example, BK channels)."""
    row_tiles = tl.cdiv(queries, BM)
    column_tiles = tl.cdiv(keys, BN)
    pid = tl.program_id(0)
    tj = pid % column_tiles
    pid = pid // column_tiles
    ti = pid % row_tiles
    pid = pid // row_tiles
    head = pid % heads
    part = pid // heads
    i = ti * BM + tl.arange(0, BM)
    j = tj * BN + tl.arange(0, BN)
    i_in = tl.minimum(i, queries - 1)
    j_in = tl.minimum(j, keys - 1)
    chunks = tl.cdiv(width, BK)
    steps = batch * chunks
    if TURNS:
        first = part
        apart = splits
        count = tl.cdiv(steps - part, splits)
    else:
        first = steps * part // splits
        apart = 1
        count = steps * (part + 1) // splits - first
    acc = tl.zeros((BM, BN), tl.float32)
    # a tile that a product and a sum read at once is overtaken by the copies (Triton 3.6)
    tl.static_assert(WRITE or not TOTAL)
    if TOTAL:
        sums = tl.zeros((BM,), tl.float32)
    live = column_tiles  # column tiles of this row that are computed; each ds is written by one of them
    if CAUSAL:
        live = tl.minimum(column_tiles, tl.cdiv((ti + 1) * BM, BN))
        if tj >= live:  # all of this tile is in the future
            count = 0
    for t in tl.range(count):
        step = first + t * apart
        b = step // chunks
        d = step % chunks * BK + tl.arange(0, BK)
        c = head * width + d
        b64 = b.to(tl.int64)
        if TMA:
            c0 = head * width + step % chunks * BK
            gt = g.load([b, ti * BM, c0]).reshape((BM, BK))
            xt = x.load([b, tj * BN, c0]).reshape((BN, BK))
        else:
            g_at = g + b64 * sgb + i_in[:, None] * sgi + c[None, :] * sgc
            x_at = x + b64 * sxb + j_in[:, None] * sxj + c[None, :] * sxc
            inside = (d < width)[None, :]
            gt = tl.load(g_at) if EVEN else tl.load(g_at, mask=inside, other=0.0)
            if MASK:
                seen = tl.load(mask + b64 * smb + j_in * smj) != 0
                xt = tl.load(x_at, mask=seen[:, None] & inside, other=0.0)
            else:
                xt = tl.load(x_at) if EVEN else tl.load(x_at, mask=inside, other=0.0)
        made = gt.to(tl.float32)
        if WRITE:
            if MODE != "plain":
                if TMA:
                    o = own.load([b, ti * BM, c0]).reshape((BM, BK))
                else:
                    o_at = own + b64 * sob + i_in[:, None] * soi + c[None, :] * soc
                    o = tl.load(o_at) if EVEN else tl.load(o_at, mask=inside, other=0.0)
                o = o.to(tl.float32)
                if MODE == "gate":
                    made *= o
                else:
                    if ALPHA == 0:
                        a = alpha_value
                    elif ALPHA == 1:
                        a = tl.load(alpha + c * sac, mask=d < width, other=0.0).to(tl.float32)[None, :]
                    else:
                        a_at = alpha + b64 * sab + i_in[:, None] * sai + c[None, :] * sac
                        a = tl.load(a_at, mask=(d < width)[None, :], other=0.0).to(tl.float32)
                    made *= a * o - (1 - a)
            if ROW:
                made *= tl.load(row + b64 * srb + i_in * sri + head * srh).to(tl.float32)[:, None]
            gt = made.to(gt.dtype)
            if t % live == tj:
                if TMA:
                    ds.store([b, ti * BM, c0], gt.reshape((1, BM, BK)))
                else:
                    to = ds + b64 * sdb + i[:, None] * sdi + c[None, :]
                    tl.store(to, gt, mask=(i < queries)[:, None] & (d < width)[None, :])
        if TOTAL:
            sums += tl.sum(made, 1)
        acc = tl.dot(gt, tl.trans(xt), acc, input_precision=PRECISION)
    at = ((part * heads + head) * queries + i[:, None]).to(tl.int64) * keys + j[None, :]
    tl.store(dw + at, acc, mask=(i < queries)[:, None] & (j < keys)[None, :])
    if TOTAL and tj == 0:
        tl.store(total + (part * heads + head) * queries + i, sums, mask=i < queries)


def _config(
    BM: int, BN: int, BK: int, warps: int, stages: int, *, tma: bool = False, waves: int = 1, gluon: bool = False,
    after: bool = False, turns: bool = False,
) -> Config:  # fmt: skip
    """waves: rounds of programs on all multiprocessors. gluon: the kernel of `outer_hopper`. after: Σ ds is taken from
    ds in a second pass, which saves registers in the first. turns: parts take the steps in turns."""
    return {"BM": BM, "BN": BN, "BK": BK, "TMA": tma, "TURNS": turns, "waves": waves, "gluon": gluon, "after": after,
            "num_warps": warps, "num_stages": stages}  # fmt: skip


HALF_PRECISION = [
    _config(128, 256, 64, 4, 3, tma=True, gluon=True, turns=True),
    _config(128, 256, 64, 4, 3, tma=True, gluon=True),
    _config(128, 256, 64, 8, 3, tma=True, turns=True),
    _config(128, 256, 64, 8, 3, tma=True),
    _config(128, 256, 64, 8, 3, tma=True, after=True),
    _config(128, 256, 64, 8, 3, after=True),
    _config(128, 256, 64, 8, 3),
    _config(128, 128, 64, 8, 3, waves=2),
]
SINGLE_PRECISION = [_config(64, 64, 32, 4, 3, waves=2), _config(128, 64, 32, 4, 3, waves=2)]
INTERPRETED = [_config(16, 32, 16, 1, 1, turns=True), _config(16, 32, 16, 1, 1, after=True)]


def _splits(tiles: int, waves: int, steps: int) -> int:
    """Parts of the sum: programs fill `waves` rounds of all multiprocessors, or one or two more, almost fully."""
    room = processors()
    rounds = max(waves, -(-tiles // room))
    best = max(range(rounds, rounds + 3), key=lambda n: (n * room // tiles * tiles / (n * room) > 0.93, -n))
    return max(1, min(steps, best * room // tiles))


def outer(
    g: Tensor, x: Tensor, heads: int, *, mode: str = "plain", own: Tensor | None = None, alpha: Tensor | None = None,
    alpha_value: float = 0.0, row: Tensor | None = None, mask: Tensor | None = None, causal: bool = False,
    total: bool = False, whole: bool = True, configs: list[Config] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """dW [heads, queries, keys] in float32, ds [batch, queries, channels], and Σ_{b, c} ds [queries] if `total`.

    Not `whole`: the parts of dW [parts, heads, queries, keys], not yet added up; rows may lie apart.
    """
    batch, queries, channels = g.shape
    keys, width = x.shape[1], channels // heads
    write = mode != "plain" or row is not None
    ds = torch.empty_like(g, memory_format=torch.contiguous_format) if write else g
    written = ds if write else None  # g is the caller's
    own_, row_, mask_ = (t if t is not None else g for t in (own, row, mask))
    a = alpha if alpha is not None else g
    alpha_strides = (0, 0, a.stride(0)) if a.dim() == 1 else a.stride()

    def finished(dw: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if total:
            sums = ds.sum((0, 2), dtype=torch.float32) if sums is None else sums.sum((0, 1))
        return dw, written, sums

    def launch(config: Config) -> tuple[Tensor, Tensor | None, Tensor | None]:
        block = dict(config)
        waves, by_hand, after, tma = block.pop("waves"), block.pop("gluon"), block.pop("after"), block["TMA"]
        inside = total and write and not after
        bm, bn, bk = block["BM"], block["BN"], block["BK"]
        tiles = heads * triton.cdiv(queries, bm) * triton.cdiv(keys, bn)
        splits = _splits(tiles, waves, batch * triton.cdiv(width, bk))
        across = triton.cdiv(keys, 16) * 16 if by_hand else keys  # rows that start where wide stores can
        dw = g.new_empty(splits, heads, queries, across, dtype=torch.float32)[..., :keys]
        sums = g.new_empty(splits, heads, queries, dtype=torch.float32) if inside else None
        if by_hand:
            from tokenmix.ops.kernels.outer_hopper import launch_outer_hopper

            launch_outer_hopper(g, own_, x, ds, dw, sums, mode=mode, alpha=alpha_value, turns=block["TURNS"])
            return finished(dw, sums)
        _outer[(tiles * splits,)](
            describe(g, bm, bk) if tma else g, describe(own_, bm, bk) if tma else own_,
            describe(x, bn, bk) if tma else x, dw, describe(ds, bm, bk) if tma else ds,
            sums if sums is not None else dw, a, row_, mask_,
            *g.stride(), *own_.stride(), *x.stride(), ds.stride(0), ds.stride(1), *alpha_strides, *row_.stride(),
            *mask_.stride()[:2], batch, queries, keys, width, heads, splits, alpha_value,
            MODE=mode, ALPHA=0 if alpha is None else 1 if alpha.dim() == 1 else 2, WRITE=write, TOTAL=inside,
            ROW=row is not None, MASK=mask is not None, CAUSAL=causal, EVEN=width % bk == 0,
            PRECISION=precision(x.dtype), **block,
        )  # fmt: skip
        return finished(dw, sums)

    def added(config: Config) -> tuple[Tensor | None, ...]:
        dw, *others = launch(config)
        return _added(dw), *others

    if configs is None:
        simple = heads == 1 and row is None and alpha is None and not causal
        configs = candidates(g, own_, x, heads, mask is not None, simple, total and write)
    key = (mode, x.dtype, batch, queries, keys, width, heads, causal, mask is not None, row is not None, total)
    dw, _, sums = launch(choose("outer", key, configs, added))
    return _added(dw) if whole else dw, ds, sums


def _added(parts: Tensor) -> Tensor:
    return parts.sum(0) if parts.shape[0] > 1 else parts[0].contiguous()


def candidates(g: Tensor, own: Tensor, x: Tensor, heads: int, masked: bool, simple: bool, total: bool) -> list[Config]:
    """The configurations that can run on these tensors; the Gluon kernel takes simple cases only."""
    if INTERPRETING:
        return INTERPRETED if total else INTERPRETED[:1]
    if x.dtype == torch.float32:
        return SINGLE_PRECISION
    width = x.shape[2] // heads
    tma = not masked and all(map(tma_ready, (g, own, x)))

    def fits(c: Config) -> bool:
        if c["gluon"] and not (gluon() and simple):
            return False
        if c["after"] and not total:
            return False
        return not c["TMA"] or (tma and width % c["BK"] == 0)

    return [c for c in HALF_PRECISION if fits(c)]
