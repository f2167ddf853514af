"""attend(q, k, v, …) = softmax(q·kᵀ + bias)·v without ever holding a [batch, heads, queries, keys] tensor.

Two backends here: PyTorch's fused attention where it applies, and a path chunked over queries, recomputed on the way
back, for what fused attention cannot do (a bias that needs a gradient, tiled logits).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from tokenmix.ops.reference import visibility

MASKED = -30000.0  # finite, so that a row that sees nothing stays finite; exp(−30000) is 0 in every precision
CHUNK = 1 << 22  # logits held at once by the chunked path: 16 MiB in float32


def attend(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    tile: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q·kᵀ + bias + key_bias + tile)·v over the visible keys.

    Args:
        q, k: [batch or 1, heads, queries | keys, width]; a batch of 1 is shared (learned queries, learned keys). There is
            no 1/√width here: scale q. Both None: logits from the bias alone.
        v: [batch, heads, keys, value width].
        bias: [heads, queries, keys] shared by the batch, or [batch, heads, queries, keys].
        key_bias: [heads, keys], one number per key.
        tile: (A [batch, heads, queries, a], B [batch, heads, queries, b]) adds A[i, j mod a]·B[i, j div a].
        mask: [batch, keys] or [batch, queries, keys], True = visible. A query that sees nothing gives 0.
        causal: query i sees keys j ≤ i.
        dropout: probability of dropping an attention weight.

    >>> q, k, v = (torch.randn(2, 4, 10, 16) for _ in range(3))
    >>> attend(q / 4, k, v, causal=True).shape
    torch.Size([2, 4, 10, 16])
    """
    if q is None and bias is None and tile is None and key_bias is None:
        raise ValueError("attend needs logits: q and k, a bias, a key_bias or a tile")
    if v.shape[0] == 0:
        return v.new_zeros(0, v.shape[1], _queries(q, bias, tile), v.shape[3])
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.bool()
    batch, heads, keys, _ = v.shape
    queries = _queries(q, bias, tile)
    trainable_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    small = batch * heads * queries * keys <= CHUNK
    if q is None or k is None or tile is not None or trainable_bias or (not v.is_cuda and (small or dropout)):
        out = _chunked(q, k, v, bias, key_bias, tile, mask, causal, dropout)
    else:
        out = _fused(q, k, v, bias, key_bias, mask, causal, dropout)
    if mask is not None:  # a query that sees nothing gives 0, with gradient 0
        visible = visibility(mask, causal and mask.dim() == 3, queries, keys, mask.device)
        sees = mask.cumsum(-1)[:, None, :queries] > 0 if causal and mask.dim() == 2 else visible.any(-1)
        out = out * sees.unsqueeze(-1).to(out.dtype)
    return out


def _queries(q: Tensor | None, bias: Tensor | None, tile: tuple[Tensor, Tensor] | None) -> int:
    return (q if q is not None else tile[0] if tile is not None else bias).shape[-2]  # type: ignore[union-attr]


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
) -> Tensor:
    """PyTorch's attention. Per-key terms ride as one extra channel, so that no mask of the size of the logits exists."""
    batch, heads, keys, width = v.shape
    full_mask = mask if mask is not None and mask.dim() == 3 else None
    per_key = _per_key(key_bias, mask if full_mask is None else None, v)
    q = q.expand(batch, -1, -1, -1)
    k = k.expand(batch, -1, -1, -1)
    if per_key is not None:
        q = torch.cat([q, q.new_ones(*q.shape[:-1], 1)], -1)
        k = torch.cat([k, per_key.to(k.dtype).expand(batch, heads, -1).unsqueeze(-1)], -1)
    # the fast kernels want equal widths
    q, k, v = (pad(t, (0, max(q.shape[-1], width) - t.shape[-1])) for t in (q, k, v))
    logits_mask = None
    if bias is not None or full_mask is not None:
        logits_mask = _as_bias(bias, full_mask, causal, q.shape[-2], keys, q)
        causal = False
    out = scaled_dot_product_attention(q, k, v, logits_mask, dropout_p=dropout, is_causal=causal, scale=1.0)
    return out[..., :width]


def _per_key(key_bias: Tensor | None, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """[batch or 1, heads or 1, keys]: what is added to all logits of a key."""
    hidden = None if mask is None else torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, MASKED)[:, None]
    if key_bias is None:
        return hidden
    return key_bias[None] if hidden is None else hidden + key_bias[None]


def _as_bias(bias: Tensor | None, mask: Tensor | None, causal: bool, queries: int, keys: int, like: Tensor) -> Tensor:
    """Bias, mask and causality as one additive 4-D tensor, its batch kept at 1 where that is possible."""
    added = like.new_zeros(1, 1, queries, keys) if bias is None else (bias if bias.dim() == 4 else bias[None]).to(like.dtype)
    if mask is not None:
        added = added.masked_fill(~mask[:, None], MASKED)
    if causal:
        added = added.masked_fill(_future(0, queries, keys, like.device), MASKED)
    return added


def _future(first: int, last: int, keys: int, device: torch.device) -> Tensor:
    """True where key j lies after query i, for queries first … last − 1."""
    return torch.arange(keys, device=device)[None, :] > torch.arange(first, last, device=device)[:, None]


def _chunked(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
) -> Tensor:
    """Query chunks one after the other; with more than one, each is recomputed on the way back instead of stored."""
    batch, heads, keys, _ = v.shape
    queries = _queries(q, bias, tile)
    rows = max(1, min(queries, CHUNK // max(1, batch * heads * keys)))
    outs = []
    for first in range(0, queries, rows):
        last = min(first + rows, queries)
        part = (
            None if q is None else q[..., first:last, :],
            k,
            v,
            None if bias is None else bias[..., first:last, :],
            key_bias,
            None if tile is None else tile[0][..., first:last, :],
            None if tile is None else tile[1][..., first:last, :],
            mask if mask is None or mask.dim() == 2 else mask[:, first:last],
            first if causal else -1,
            dropout,
        )
        outs.append(_rows(*part) if rows >= queries else checkpoint(_rows, *part, use_reentrant=False))
    return outs[0] if len(outs) == 1 else torch.cat(outs, -2)


def _rows(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile_a: Tensor | None,
    tile_b: Tensor | None,
    mask: Tensor | None,
    first: int,
    dropout: float,
) -> Tensor:
    """Attention of some query rows; `first` is their first position where attention is causal, else −1."""
    keys = v.shape[-2]
    logits = None if q is None or k is None else q @ k.transpose(-1, -2)
    if tile_a is not None and tile_b is not None:
        # A[i, j mod a]·B[i, j div a] is the outer product of the two vectors, read row by row
        tiled = (tile_b.unsqueeze(-1) * tile_a.unsqueeze(-2)).flatten(-2)[..., :keys]
        logits = tiled if logits is None else logits + tiled
    if bias is not None:
        bias = bias if bias.dim() == 4 else bias[None]
        logits = bias if logits is None else logits + bias
    added = _per_key(key_bias, mask if mask is not None and mask.dim() == 2 else None, v)
    if added is not None:
        logits = added[:, :, None] if logits is None else logits + added[:, :, None]
    assert logits is not None
    if mask is not None and mask.dim() == 3:
        logits = logits.masked_fill(~mask[:, None], MASKED)
    if first >= 0:
        logits = logits.masked_fill(_future(first, first + logits.shape[-2], keys, v.device), float("-inf"))
    weights = torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(v.dtype)
    if dropout:
        weights = torch.dropout(weights.expand(v.shape[0], v.shape[1], -1, -1), dropout, True)
    return weights @ v
