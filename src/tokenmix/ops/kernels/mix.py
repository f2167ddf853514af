"""y = epilogue(r ⊙ (W·(m ⊙ x))): a mixing matrix shared by the batch, its epilogue inside the kernel.

    plain           y = s                                 s[b, i, c] = r[b, i, h] Σ_j W[h, i, j] m[b, j] x[b, j, c]
    compose         y = α (s ⊙ x) + (1 − α)(x − s)        Remixer; s is kept for the way back
    gate            y = u ⊙ f,  f = s + b + a             gMLP; f is kept for the way back
    compose_grad    y = s + g ⊙ (α t + 1 − α)             dx of compose: W is Wᵀ, x is ds, t the s kept, r = m
    gate_grad       y = s,  extra = g ⊙ f                 dx and du of gate: W is Wᵀ, x is ds, r = m

A tile of the output is BM positions × BN columns; the columns are BN / BD examples × BD channels of one head, so that
narrow heads fill a tile with several examples. The tiles of one column block follow each other, so that x comes from
memory once and from the L2 cache for the other row blocks.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmix.ops.kernels import INTERPRETING
from tokenmix.ops.kernels.tune import Config, choose, gluon, has_tma, precision, processors

PAD = 64  # W's columns are padded with zeros to a multiple of this; no block of keys is larger


@triton.jit
def _spread(v, BM: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr):
    """One number per (row, example) → one per (row, column)."""
    return tl.reshape(tl.broadcast_to(v[:, :, None], (BM, BB, BD)), (BM, BB * BD))


@triton.jit
def _operand(t, b, i, c, sb, si, sc, real, corner, TMA: tl.constexpr):
    """A tile of an operand of the epilogue."""
    if TMA:
        v = t.load(corner).reshape(real.shape)
    else:
        v = tl.load(t + b * sb + i * si + c * sc, mask=real, other=0.0)
    return v.to(tl.float32)


@triton.jit
def _write(t, v, b, i, c, sb, si, real, corner, TMA: tl.constexpr):
    """A tile of a result."""
    if TMA:
        t.store(corner, v.to(t.dtype).reshape((1, v.shape[0], v.shape[1])))
    else:
        tl.store(t + b * sb + i * si + c, v.to(t.dtype.element_ty), mask=real)


@triton.jit
def _finish(
    s, m0, head, b0, d0, n_first, N: tl.constexpr,
    y, extra, own, other, bias, alpha,
    syb, syi, sob, soi, soc, stb, sti, stc, sab, sai, sac,
    batch, queries, width, alpha_value,
    MODE: tl.constexpr, ALPHA: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OTHER: tl.constexpr, SAVE: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """The epilogue of N columns of a tile, from column n_first on. TMA: operands and results are tensor descriptors."""
    n = n_first + tl.arange(0, N)
    b = (b0 + n // BD).to(tl.int64)[None, :]
    d = d0 + n % BD
    c = (head * width + d)[None, :]
    i = (m0 + tl.arange(0, BM))[:, None]
    real = (i < queries) & (b < batch) & (d < width)[None, :]
    corner = [b0, m0, head * width + d0 + n_first]
    if MODE == "compose" or MODE == "compose_grad":
        if ALPHA == 0:
            a = alpha_value
        elif ALPHA == 1:
            a = tl.load(alpha + c * sac, mask=(d < width)[None, :], other=0.0).to(tl.float32)
        else:
            a = tl.load(alpha + b * sab + i * sai + c * sac, mask=real, other=0.0).to(tl.float32)
    if MODE != "plain":
        t = _operand(own, b, i, c, sob, soi, soc, real, corner, TMA)
    if MODE == "compose":
        out = a * (s * t) + (1 - a) * (t - s)
        if SAVE:
            _write(extra, s, b, i, c, syb, syi, real, corner, TMA)
    elif MODE == "gate":
        if HAS_BIAS:
            s += tl.load(bias + i, mask=i < queries, other=0.0).to(tl.float32)
        if HAS_OTHER:
            s += _operand(other, b, i, c, stb, sti, stc, real, corner, TMA)
        out = t * s
        if SAVE:
            _write(extra, s, b, i, c, syb, syi, real, corner, TMA)
    elif MODE == "compose_grad":
        out = s + t * (a * _operand(other, b, i, c, stb, sti, stc, real, corner, TMA) + (1 - a))
    elif MODE == "gate_grad":
        _write(
            extra, t * _operand(other, b, i, c, stb, sti, stc, real, corner, TMA), b, i, c, syb, syi, real, corner, TMA
        )
        out = s
    else:
        out = s
    _write(y, out, b, i, c, syb, syi, real, corner, TMA)


@triton.jit
def _halves(t, M: tl.constexpr, N: tl.constexpr):
    """The left and the right half of a tile [M, N]."""
    return tl.split(tl.permute(tl.reshape(t, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def _mix(
    w, x, y, extra, own, other, bias, alpha, row, mask,
    swh, swi, sxb, sxj, sxc, syb, syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, srb, sri, srh, smb, smj,
    batch, queries, keys, padded, width, heads, alpha_value,
    MODE: tl.constexpr, ALPHA: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OTHER: tl.constexpr, SAVE: tl.constexpr,
    ROW: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, SUB: tl.constexpr, TMA: tl.constexpr,
    FLATTEN: tl.constexpr, EPILOGUE_TMA: tl.constexpr,
):  # fmt: skip
    """See the module. CAUSAL: 1, W is 0 right of its diagonal; −1, left of it. TMA: w and x are tensor descriptors."""
    BB: tl.constexpr = BN // BD
    row_tiles = tl.cdiv(queries, BM)
    width_tiles = tl.cdiv(width, BD)
    column_tiles = tl.cdiv(batch, BB) * width_tiles
    tiles = heads * column_tiles * row_tiles
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        m0 = tile % row_tiles * BM
        n0 = tile // row_tiles
        head = n0 // column_tiles
        n0 = n0 % column_tiles
        b0 = n0 // width_tiles * BB
        d0 = n0 % width_tiles * BD
        n = tl.arange(0, BN)
        b = tl.minimum(b0 + n // BD, batch - 1).to(tl.int64)
        d = d0 + n % BD
        i = m0 + tl.arange(0, BM)
        kk = tl.arange(0, BK)
        if not TMA:
            w_rows = w + head * swh + tl.minimum(i, queries - 1)[:, None] * swi + kk[None, :]
            x_columns = x + b[None, :] * sxb + (head * width + d)[None, :] * sxc
        first = 0
        last = padded
        if CAUSAL == 1:
            last = tl.minimum(padded, m0 + BM)
        if CAUSAL == -1:
            first = m0 // BK * BK
        acc = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(first, last, BK):
            if TMA:
                a = w.load([head, m0, k]).reshape((BM, BK))
                v = x.load([b0, k, head * width + d0]).reshape((BK, BN))  # 0 past the last key
            else:
                a = tl.load(w_rows + k)
                j = tl.minimum(k + kk, keys - 1)  # W is 0 where this clamps
                at = x_columns + j[:, None] * sxj
                if MASK:
                    bb = tl.minimum(b0 + tl.arange(0, BB), batch - 1)
                    seen = tl.load(mask + bb[None, :].to(tl.int64) * smb + j[:, None] * smj)
                    seen = _spread(seen, BK, BB, BD) != 0
                    v = tl.load(at, mask=seen & (d < width)[None, :], other=0.0)
                elif EVEN:
                    v = tl.load(at)
                else:
                    v = tl.load(at, mask=(d < width)[None, :], other=0.0)
            acc = tl.dot(a, v, acc, input_precision=PRECISION)
        if ROW:
            bb = tl.minimum(b0 + tl.arange(0, BB), batch - 1)
            r = tl.load(row + bb[None, :].to(tl.int64) * srb + tl.minimum(i, queries - 1)[:, None] * sri + head * srh)
            acc *= _spread(r.to(tl.float32), BM, BB, BD)
        # in pieces: fewer registers and less shared memory for the operands of the epilogue
        PIECE: tl.constexpr = BN // SUB
        if SUB == 1:
            _finish(acc, m0, head, b0, d0, 0, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip
        elif SUB == 2:
            left, right = _halves(acc, BM, BN)
            _finish(left, m0, head, b0, d0, 0, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip
            _finish(right, m0, head, b0, d0, PIECE, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip
        else:
            left, right = _halves(acc, BM, BN)
            first_quarter, second_quarter = _halves(left, BM, BN // 2)
            _finish(first_quarter, m0, head, b0, d0, 0, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip
            _finish(second_quarter, m0, head, b0, d0, PIECE, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip
            third_quarter, last_quarter = _halves(right, BM, BN // 2)
            _finish(third_quarter, m0, head, b0, d0, 2 * PIECE, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip
            _finish(last_quarter, m0, head, b0, d0, 3 * PIECE, PIECE, y, extra, own, other, bias, alpha, syb,
                    syi, sob, soi, soc, stb, sti, stc, sab, sai, sac, batch, queries, width, alpha_value, MODE, ALPHA,
                    HAS_BIAS, HAS_OTHER, SAVE, BM, BD, EPILOGUE_TMA)  # fmt: skip


def _config(BM: int, BN: int, BK: int, warps: int, stages: int, *, tma: bool = False, flatten: bool = False,
            sub: int = 1, per_sm: int = 0, bulk: bool = False, gluon: bool = False) -> Config:  # fmt: skip
    """per_sm: persistent programs per multiprocessor, 0 for one program per tile. bulk: the epilogue by TMA, too.
    gluon: the kernel of `mix_hopper`."""
    return {"BM": BM, "BN": BN, "BK": BK, "SUB": sub, "TMA": tma, "EPILOGUE_TMA": bulk, "FLATTEN": flatten,
            "per_sm": per_sm, "gluon": gluon, "num_warps": warps, "num_stages": stages}  # fmt: skip


HALF_PRECISION = [
    _config(128, 128, 64, 4, 8, tma=True, bulk=True, gluon=True),  # 8 blocks of x at a time
    _config(128, 256, 64, 8, 3, tma=True, flatten=True, per_sm=1, sub=2),
    _config(128, 128, 64, 4, 3, tma=True, sub=2, bulk=True),
    _config(128, 128, 64, 4, 3, tma=True, flatten=True, per_sm=2, sub=2),
    _config(128, 256, 64, 8, 3, flatten=True, per_sm=1, sub=2),
    _config(128, 128, 64, 4, 3, sub=2),
    _config(64, 128, 64, 4, 3),
]
SINGLE_PRECISION = [_config(128, 64, 32, 4, 3), _config(64, 64, 32, 4, 3)]
INTERPRETED = [_config(16, 32, 16, 1, 1, sub=2)]


def padded_keys(keys: int) -> int:
    """The columns W needs in memory."""
    return -(-keys // PAD) * PAD


def prepare(w: Tensor, dtype: torch.dtype, *, transpose: bool = False) -> Tensor:
    """W [heads, i, j] in the kernel's form: of type `dtype`, rows contiguous, columns padded with zeros."""
    w = w.transpose(1, 2) if transpose else w
    heads, queries, keys = w.shape
    if keys % PAD == 0:
        return w.to(dtype).contiguous()
    out = w.new_zeros(heads, queries, padded_keys(keys), dtype=dtype)
    out[..., :keys] = w
    return out


def tma_ready(t: Tensor) -> bool:
    """Can the bulk copy engine read t [batch, length, channels]?"""
    size = t.element_size()
    apart = t.stride(0) >= t.shape[1] * t.stride(1) or t.shape[0] == 1  # not one example spread over the batch,
    apart = apart and (t.stride(1) >= t.shape[2] or t.shape[1] == 1)  # nor one row over an example
    aligned = all(step * size % 16 == 0 for step in t.stride()[:2]) and t.data_ptr() % 16 == 0
    return has_tma() and apart and aligned and t.stride(2) == 1


def gapless(t: Tensor) -> bool:
    """Do the examples of t [batch, length, channels] follow each other without a gap, as rows of one matrix?"""
    return t.stride(0) == t.shape[1] * t.stride(1) or t.shape[0] == 1


def describe(t: Tensor, rows: int, columns: int) -> Any:
    """A descriptor for blocks [1, rows, columns] of t [batch, length, channels]: 0 outside, where nothing is written."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(t, list(t.shape), list(t.stride()), [1, rows, columns])


def mix(
    w: Tensor, x: Tensor, y: Tensor, *, keys: int, mode: str = "plain", extra: Tensor | None = None,
    own: Tensor | None = None, other: Tensor | None = None, bias: Tensor | None = None, alpha: Tensor | None = None,
    alpha_value: float = 0.0, row: Tensor | None = None, mask: Tensor | None = None, causal: int = 0,
    configs: list[Config] | None = None,
) -> None:  # fmt: skip
    """Fill y [batch, queries, channels] (and `extra`); w is what :func:`prepare` returns. See the module for the rest.

    `row` [batch, queries, heads] is r, `mask` [batch, keys] m, `alpha` [channels] or [batch, queries, channels].
    """
    heads, queries, padded = w.shape
    batch, _, channels = x.shape
    width = channels // heads
    none = y  # stands for what is absent
    a = alpha if alpha is not None else none
    extra_, own_, other_ = (t if t is not None else none for t in (extra, own, other))
    row_, mask_ = (t if t is not None else none for t in (row, mask))
    alpha_strides = (0, 0, a.stride(0)) if a.dim() == 1 else a.stride()

    def launch(config: Config) -> tuple[Tensor, Tensor | None]:
        block = dict(config)
        if block.pop("gluon"):
            from tokenmix.ops.kernels.mix_hopper import launch_mix_hopper

            keep = extra is not None and mode in ("compose", "gate", "gate_grad")
            launch_mix_hopper(w, x, y, extra_, own_, other_, bias, mode=mode, alpha=alpha_value, save=keep)
            return y, extra
        per_sm, tma, bulk = block.pop("per_sm"), block["TMA"], block["EPILOGUE_TMA"]
        bd = min(block["BN"], max(16, triton.next_power_of_2(width)))
        tiles = (
            heads * triton.cdiv(batch, block["BN"] // bd) * triton.cdiv(width, bd) * triton.cdiv(queries, block["BM"])
        )
        _mix[(min(tiles, per_sm * processors()) if per_sm else tiles,)](
            describe(w, block["BM"], block["BK"]) if tma else w, describe(x, block["BK"], bd) if tma else x,
            *(t if not bulk else describe(t, block["BM"], bd // block["SUB"]) for t in (y, extra_, own_, other_)),
            bias if bias is not None else none, a, row_, mask_,
            w.stride(0), w.stride(1), *x.stride(), y.stride(0), y.stride(1), *own_.stride(), *other_.stride(),
            *alpha_strides, *(row_.stride()), *(mask_.stride()[:2]),
            batch, queries, keys, padded, width, heads, alpha_value,
            MODE=mode, ALPHA=0 if alpha is None else 1 if alpha.dim() == 1 else 2, HAS_BIAS=bias is not None,
            HAS_OTHER=other is not None, SAVE=extra is not None, ROW=row is not None, MASK=mask is not None,
            CAUSAL=causal, EVEN=width % bd == 0, PRECISION=precision(x.dtype), BD=bd, **block,
        )  # fmt: skip
        return y, extra

    if configs is None:
        bulk = all(tma_ready(t) for t in (y, extra_, own_, other_))
        simple = row is None and alpha is None and causal == 0 and (other is None or mode.endswith("grad"))
        simple = simple and keys == padded and all(map(gapless, (x, y, extra_, own_, other_)))
        configs = candidates(w, x, mask is not None, bulk, simple)
    key = (mode, x.dtype, batch, queries, keys, width, heads, causal, mask is not None, row is not None)
    launch(choose("mix", key, configs, launch))


def candidates(w: Tensor, x: Tensor, masked: bool, bulk: bool, simple: bool = False) -> list[Config]:
    """The configurations that can run on these tensors. bulk: the epilogue can go by TMA. simple: for `mix_hopper`."""
    if INTERPRETING:
        return INTERPRETED
    if x.dtype == torch.float32:
        return SINGLE_PRECISION
    heads, width = w.shape[0], x.shape[2] // w.shape[0]
    tma = not masked and tma_ready(x) and tma_ready(w)

    def fits(config: Config) -> bool:
        columns = config["BN"]
        whole = w.shape[1] % config["BM"] == 0 and w.shape[2] % config["BK"] == 0 and w.shape[2] <= 512
        if config["gluon"] and not (gluon() and simple and heads == 1 and whole):
            return False
        if config["EPILOGUE_TMA"] and not (bulk and width % columns == 0):
            return False
        return not config["TMA"] or (tma and width >= columns and (heads == 1 or width % columns == 0))

    return [config for config in HALF_PRECISION if fits(config)]
