"""W = softmax(H), row by row, in the form that `mix` takes, and H's gradient from the parts that `outer` leaves.

    W[h, i, j] = exp(H[h, i, j]) / Σ_j exp(H[h, i, j])   over all keys j, or those up to i
    dH = W ⊙ (dW − Σ_j W ⊙ dW),   dW = Σ_part dW[part]

One small kernel each instead of three and four: beside a fast product their launches count.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenmix.ops.kernels.mix import padded_keys

WIDEST = 4096  # keys of a row that fit into registers


@triton.jit
def _softmax(h, i, j, sh, queries, keys, CAUSAL: tl.constexpr):
    """Rows i of W; h is at its head."""
    real = (i < queries)[:, None] & (j < keys)[None, :]
    if CAUSAL:
        real = real & (j[None, :] <= i[:, None])
    s = tl.load(h + i[:, None] * sh + j[None, :], mask=real, other=float("-inf")).to(tl.float32)
    e = tl.where(real, tl.exp(s - tl.max(s, 1)[:, None]), 0.0)
    total = tl.sum(e, 1)
    return e / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _weights(
    h, w, shh, shi, swh, swr, queries, keys, padded,
    CAUSAL: tl.constexpr, TURNED: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    j = tl.arange(0, BJ)
    head = tl.program_id(1).to(tl.int64)
    p = _softmax(h + head * shh, i, j, shi, queries, keys, CAUSAL).to(w.dtype.element_ty)
    if TURNED:
        tl.store(w + head * swh + j[None, :] * swr + i[:, None], p, mask=(i < padded)[:, None] & (j < keys)[None, :])
    else:
        tl.store(w + head * swh + i[:, None] * swr + j[None, :], p, mask=(i < queries)[:, None] & (j < padded)[None, :])


@triton.jit
def _logits_grad(
    h, parts, dh, shh, shi, spp, sph, spi, queries, keys, count,
    CAUSAL: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """BP: parts that are read at a time."""
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    j = tl.arange(0, BJ)
    head = tl.program_id(1).to(tl.int64)
    p = _softmax(h + head * shh, i, j, shi, queries, keys, CAUSAL)
    inside = (i < queries)[:, None] & (j < keys)[None, :]
    at = parts + head * sph + i[:, None] * spi + j[None, :]
    dw = tl.zeros((BI, BJ), tl.float32)
    for first in range(0, count, BP):
        part = (first + tl.arange(0, BP))[:, None, None]
        dw += tl.sum(tl.load(at[None] + part * spp, mask=inside[None] & (part < count), other=0.0), 0)
    dw = p * (dw - tl.sum(p * dw, 1)[:, None])
    tl.store(dh + (head * queries + i[:, None]) * keys + j[None, :], dw, mask=inside)


def softmax_weights(h: Tensor, dtype: torch.dtype, *, causal: bool, transpose: bool = False) -> Tensor:
    """softmax(H), or its transpose, as :func:`mix.prepare` would hand it over: columns padded with zeros."""
    h = h if h.stride(-1) == 1 else h.contiguous()
    heads, queries, keys = h.shape
    rows, columns = (keys, queries) if transpose else (queries, keys)
    padded = padded_keys(columns)
    w = h.new_empty(heads, rows, padded, dtype=dtype)
    bj = triton.next_power_of_2(keys if transpose else padded)
    bi = max(1, 8192 // bj) if transpose else max(1, 2048 // bj)  # transposed: whole sectors of memory
    _weights[(triton.cdiv(padded if transpose else queries, bi), heads)](
        h, w, *h.stride()[:2], *w.stride()[:2], queries, keys, padded, CAUSAL=causal, TURNED=transpose, BI=bi, BJ=bj
    )
    return w


def logits_grad(h: Tensor, parts: Tensor, *, causal: bool) -> Tensor:
    """dH [heads, queries, keys] from the parts of dW [parts, heads, queries, keys], all in float32."""
    h = h if h.stride(-1) == 1 else h.contiguous()
    heads, queries, keys = h.shape
    dh = torch.empty_like(h, dtype=torch.float32, memory_format=torch.contiguous_format)
    bj = triton.next_power_of_2(keys)
    bi, bp = max(1, 512 // bj), max(1, min(8, 4096 // bj))  # what fits into registers
    _logits_grad[(triton.cdiv(queries, bi), heads)](
        h, parts, dh, *h.stride()[:2], *parts.stride()[:3], queries, keys, parts.shape[0], CAUSAL=causal, BI=bi, BJ=bj,
        BP=bp,
    )  # fmt: skip
    return dh
