"""softmax(q·kᵀ + bias + key_bias)·v with gradients for every input, the bias among them, and no atomics.

    S = q kᵀ + bias[h] + key_bias[h],  P = softmax(S) over visible keys,  o = P v
    dv = Pᵀ do,  dP = do vᵀ,  dS = P ⊙ (dP − Δ),  Δ = Σ_d do ⊙ o,  dq = dS k,  dk = dSᵀ q,  dbias = Σ_b dS

Forward keeps the logarithm of each row's sum. The way back walks over the keys (dk, dv) and leaves dSᵀ of some examples
in a bounded workspace, from which come dq and, by a sum over examples in a fixed order, dbias. It works on Sᵀ [keys,
queries] throughout, bias and dS included, so that no tile is transposed in registers. TMA: bias and dS are tensor
descriptors, copied by the bulk engine while the matrix units work.

With dropout, M of `tokenmix.ops.dropout` (0, or 1 over the share that is kept): o = (P ⊙ M) v, dv = (P ⊙ M)ᵀ do,
dP = M ⊙ do vᵀ; the rest stays, Δ included. M is drawn again on the way back.

LENGTHS: blocks of queries from lengths[b] on are padding that nobody reads; they give 0 and are not computed.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)  # below every logit, yet finite: a row that sees nothing has no NaN in it


@triton.jit
def _visible(s, i, j, mask, smi, smj, queries, keys, MASK: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr):
    """Logits with −∞ where query i must not see key j; i and j are shaped to broadcast. `mask` is at its example."""
    if MASK == 1:  # [keys]
        s = tl.where(tl.load(mask + j * smj, mask=j < keys, other=0) != 0, s, float("-inf"))
    elif MASK == 2:  # [queries, keys]
        inside = (i < queries) & (j < keys)
        s = tl.where(tl.load(mask + i * smi + j * smj, mask=inside, other=0) != 0, s, float("-inf"))
    elif not EVEN:
        s = tl.where(j < keys, s, float("-inf"))
    if CAUSAL:
        s = tl.where(j <= i, s, float("-inf"))
    return s


@triton.jit
def _scrambled(x):
    """f of `tokenmix.ops.dropout`, of unsigned 32-bit numbers."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(seed, stream, i, j, keys, dropout):
    """M for query i and key j of an example's head; i and j are shaped to broadcast."""
    key = _scrambled(tl.load(seed).to(tl.uint32) + stream.to(tl.uint32))
    draw = _scrambled((i * keys + j).to(tl.uint32) ^ key) + tl.load(seed + 1).to(tl.uint32)
    draw = (_scrambled(draw) >> 8).to(tl.float32) * (1.0 / (1 << 24))
    return tl.where(draw < dropout, 0.0, 1.0 / (1.0 - dropout))


@triton.jit
def _rows(at, r, d, limit, width, EVEN: tl.constexpr, FULL: tl.constexpr):
    """A tile [r, d] at its pointers; 0 outside. EVEN: all rows are inside; FULL: all columns are."""
    if EVEN and FULL:
        return tl.load(at)
    elif FULL:
        return tl.load(at, mask=(r < limit)[:, None], other=0.0)
    else:
        return tl.load(at, mask=(r < limit)[:, None] & (d < width)[None, :], other=0.0)


@triton.jit
def _asking(lengths, b, queries, LENGTHS: tl.constexpr):
    """How many queries of an example are read."""
    if LENGTHS:
        return tl.minimum(tl.load(lengths + b), queries)
    else:
        return queries


@triton.jit
def attention_forward(
    q, k, v, bias, key_bias, mask, lengths, seed, dropout, out, lse,
    sqb, sqh, sqi, skb, skh, skj, svb, svh, svj, sbh, sbi, sbj, smb, smi, smj, sob, soh, soi,
    heads, queries, keys, width: tl.constexpr, value_width: tl.constexpr,
    BIAS: tl.constexpr, KEY_BIAS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, EVEN_I: tl.constexpr, EVEN_J: tl.constexpr, DQ: tl.constexpr,
    DV: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [BI queries] of one head of one example, and log₂ Σ exp of its logits."""
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    head = tl.program_id(1) % heads
    b = (tl.program_id(1) // heads).to(tl.int64)
    dq, dv, jj = tl.arange(0, DQ), tl.arange(0, DV), tl.arange(0, BJ)
    FULL_Q: tl.constexpr = width == DQ
    FULL_V: tl.constexpr = value_width == DV
    qt = _rows(q + b * sqb + head * sqh + i[:, None] * sqi + dq[None, :], i, dq, queries, width, EVEN_I, FULL_Q)
    k += b * skb + head * skh
    v += b * svb + head * svh
    mask += b * smb
    i_in = i if EVEN_I else tl.minimum(i, queries - 1)
    top = tl.full((BI,), LOWEST, tl.float32)
    total = tl.zeros((BI,), tl.float32)
    acc = tl.zeros((BI, DV), tl.float32)
    last = tl.minimum(keys, (tl.program_id(0) + 1) * BI) if CAUSAL else keys
    if LENGTHS:
        last = tl.where(tl.program_id(0) * BI < _asking(lengths, b, queries, LENGTHS), last, 0)
    for j0 in tl.range(0, last, BJ, num_stages=STAGES):
        j = j0 + jj
        kt = _rows(k + j[:, None] * skj + dq[None, :], j, dq, keys, width, EVEN_J, FULL_Q)
        s = tl.dot(qt, tl.trans(kt), input_precision=PRECISION)
        if BIAS:
            if TMA:
                s += bias.load([head, tl.program_id(0) * BI, j0]).reshape((BI, BJ)).to(tl.float32)
            else:
                at = bias + head * sbh + i_in[:, None] * sbi + j[None, :] * sbj
                s += (tl.load(at) if EVEN_J else tl.load(at, mask=(j < keys)[None, :], other=0.0)).to(tl.float32)
        if KEY_BIAS:
            s += tl.load(key_bias + head * keys + j, mask=j < keys, other=0.0).to(tl.float32)[None, :]
        s = _visible(s, i[:, None], j[None, :], mask, smi, smj, queries, keys, MASK, CAUSAL, EVEN_J)
        higher = tl.maximum(top, tl.max(s, 1) * LOG2E)
        p = tl.exp2(s * LOG2E - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        if DROPS:
            p *= _kept(seed, tl.program_id(1), i[:, None], j[None, :], keys, dropout)
        vt = _rows(v + j[:, None] * svj + dv[None, :], j, dv, keys, value_width, EVEN_J, FULL_V)
        acc = tl.dot(p.to(vt.dtype), vt, acc * shrink[:, None], input_precision=PRECISION)
        top = higher
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    at = out + b * sob + head * soh + i[:, None] * soi + dv[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=(i < queries)[:, None] & (dv < value_width)[None, :])
    # +∞ for a row that sees nothing, so that its P is 0 on the way back
    sums = tl.where(total > 0, top + tl.log2(total), float("inf"))
    tl.store(lse + tl.program_id(1).to(tl.int64) * queries + i, sums, mask=i < queries)


@triton.jit
def attention_delta(
    o, do, delta, sob, soh, soi, sgb, sgh, sgi, heads, queries, width, BI: tl.constexpr, DV: tl.constexpr
):  # fmt: skip
    """Δ[b, h, i] = Σ_d do ⊙ o."""
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    head = tl.program_id(1) % heads
    b = (tl.program_id(1) // heads).to(tl.int64)
    d = tl.arange(0, DV)
    real = (i < queries)[:, None] & (d < width)[None, :]
    ot = tl.load(o + b * sob + head * soh + i[:, None] * soi + d[None, :], mask=real, other=0.0).to(tl.float32)
    gt = tl.load(do + b * sgb + head * sgh + i[:, None] * sgi + d[None, :], mask=real, other=0.0).to(tl.float32)
    tl.store(delta + tl.program_id(1).to(tl.int64) * queries + i, tl.sum(ot * gt, 1), mask=i < queries)


@triton.jit
def attention_backward_keys(
    q, k, v, bias, key_bias, mask, lengths, seed, dropout, do, lse, delta, dk, dv, ds,
    sqb, sqh, sqi, skb, skh, skj, svb, svh, svj, sbh, sbj, sbi, smb, smi, smj, sgb, sgh, sgi,
    sdkb, sdkh, sdkj, sdvb, sdvh, sdvj, pitch, b_first, heads, queries, keys, width: tl.constexpr, value_width: tl.constexpr,
    BIAS: tl.constexpr, KEY_BIAS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, EVEN_I: tl.constexpr, EVEN_J: tl.constexpr, DQ: tl.constexpr,
    DV: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dk and dv of BJ keys of one head of one example; its dSᵀ goes to ds [examples, heads, keys, queries].

    `bias` is transposed, [heads, keys, queries]. Rows of ds lie `pitch` numbers apart.
    """
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    head = tl.program_id(1) % heads
    local = (tl.program_id(1) // heads).to(tl.int64)
    b = b_first + local
    d_q, d_v, ii = tl.arange(0, DQ), tl.arange(0, DV), tl.arange(0, BI)
    FULL_Q: tl.constexpr = width == DQ
    FULL_V: tl.constexpr = value_width == DV
    kt = _rows(k + b * skb + head * skh + j[:, None] * skj + d_q[None, :], j, d_q, keys, width, EVEN_J, FULL_Q)
    vt = _rows(v + b * svb + head * svh + j[:, None] * svj + d_v[None, :], j, d_v, keys, value_width, EVEN_J, FULL_V)
    q += b * sqb + head * sqh
    do += b * sgb + head * sgh
    mask += b * smb
    lse += (b * heads + head) * queries
    delta += (b * heads + head) * queries
    ds_row = (local * heads + head) * keys + tl.program_id(0) * BJ
    j_in = j if EVEN_J else tl.minimum(j, keys - 1)
    if KEY_BIAS:
        added = tl.load(key_bias + head * keys + j_in).to(tl.float32)
    acc_k = tl.zeros((BJ, DQ), tl.float32)
    acc_v = tl.zeros((BJ, DV), tl.float32)
    start = tl.program_id(0) * BJ // BI * BI if CAUSAL else 0
    stop = _asking(lengths, b, queries, LENGTHS)
    for i0 in tl.range(0, queries, BI, num_stages=STAGES):
        i = i0 + ii
        if (CAUSAL and i0 < start) or (LENGTHS and i0 >= stop):  # nothing is seen, or nobody reads it: dS must say so
            dst = tl.zeros((BJ, BI), dk.dtype.element_ty)
        else:
            qt = _rows(q + i[:, None] * sqi + d_q[None, :], i, d_q, queries, width, EVEN_I, FULL_Q)
            s = tl.dot(kt, tl.trans(qt), input_precision=PRECISION)  # Sᵀ [keys, queries]
            if BIAS:
                if TMA:
                    s += bias.load([head, tl.program_id(0) * BJ, i0]).reshape((BJ, BI)).to(tl.float32)
                else:
                    at = bias + head * sbh + i[None, :] * sbi + j_in[:, None] * sbj
                    s += (tl.load(at) if EVEN_I else tl.load(at, mask=(i < queries)[None, :], other=0.0)).to(tl.float32)
            if KEY_BIAS:
                s += added[:, None]
            s = _visible(s, i[None, :], j[:, None], mask, smi, smj, queries, keys, MASK, CAUSAL, EVEN_J)
            sums = tl.load(lse + i, mask=i < queries, other=float("inf"))
            p = tl.exp2(s * LOG2E - sums[None, :])
            gt = _rows(do + i[:, None] * sgi + d_v[None, :], i, d_v, queries, value_width, EVEN_I, FULL_V)
            dp = tl.dot(vt, tl.trans(gt), input_precision=PRECISION)
            used = p
            if DROPS:
                kept = _kept(seed, b * heads + head, i[None, :], j[:, None], keys, dropout)
                used, dp = p * kept, dp * kept
            acc_v = tl.dot(used.to(gt.dtype), gt, acc_v, input_precision=PRECISION)
            shift = tl.load(delta + i, mask=i < queries, other=0.0)
            dst = (p * (dp - shift[None, :])).to(qt.dtype)
            acc_k = tl.dot(dst, qt, acc_k, input_precision=PRECISION)
        if TMA:
            ds.store([tl.program_id(1), tl.program_id(0) * BJ, i0], dst.reshape((1, BJ, BI)))
        else:
            at = ds + (ds_row + tl.arange(0, BJ))[:, None] * pitch + i[None, :]
            tl.store(at, dst, mask=(i < queries)[None, :] & (j < keys)[:, None])
    at_k = dk + b * sdkb + head * sdkh + j[:, None] * sdkj + d_q[None, :]
    tl.store(at_k, acc_k.to(dk.dtype.element_ty), mask=(j < keys)[:, None] & (d_q < width)[None, :])
    at_v = dv + b * sdvb + head * sdvh + j[:, None] * sdvj + d_v[None, :]
    tl.store(at_v, acc_v.to(dv.dtype.element_ty), mask=(j < keys)[:, None] & (d_v < value_width)[None, :])


@triton.jit
def attention_backward_queries(
    ds, k, dq, lengths, pitch, skb, skh, skj, sdqb, sdqh, sdqi, b_first, heads, queries, keys, width: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, PRECISION: tl.constexpr, EVEN_I: tl.constexpr, EVEN_J: tl.constexpr,
    DQ: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """dq of BI queries of one head of one example from dSᵀ [examples, heads, keys, queries]."""
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    head = tl.program_id(1) % heads
    local = (tl.program_id(1) // heads).to(tl.int64)
    b = b_first + local
    d, jj = tl.arange(0, DQ), tl.arange(0, BJ)
    columns = ds + (local * heads + head) * keys * pitch + i[None, :]
    k += b * skb + head * skh + d[None, :]
    acc = tl.zeros((BI, DQ), tl.float32)
    last = tl.minimum(keys, (tl.program_id(0) + 1) * BI) if CAUSAL else keys
    if LENGTHS:
        last = tl.where(tl.program_id(0) * BI < _asking(lengths, b, queries, LENGTHS), last, 0)
    for j0 in tl.range(0, last, BJ):
        j = j0 + jj
        if EVEN_I and EVEN_J:
            t = tl.load(columns + j[:, None] * pitch)
        else:
            t = tl.load(columns + j[:, None] * pitch, mask=(j < keys)[:, None] & (i < queries)[None, :], other=0.0)
        kt = _rows(k + j[:, None] * skj, j, d, keys, width, EVEN_J, width == DQ)
        acc = tl.dot(tl.trans(t), kt, acc, input_precision=PRECISION)
    at = dq + b * sdqb + head * sdqh + i[:, None] * sdqi + d[None, :]
    tl.store(at, acc.to(dq.dtype.element_ty), mask=(i < queries)[:, None] & (d < width)[None, :])
