"""attend(q, k, v, …) = softmax(q·kᵀ + bias)·v without ever holding a [batch, heads, queries, keys] tensor.

Two backends here: PyTorch's fused attention where it applies, and blocks that are computed again on the way back
(:mod:`tokenmix.ops.chunked`) for what fused attention cannot do: a bias that needs a gradient, tiled logits. Logits
small enough to sit in a few megabytes are held: that is fastest on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from tokenmix.devices import product_dtype, transformed
from tokenmix.ops.chunked import MASKED, chunked, future, per_key, rows
from tokenmix.ops.dropout import kept, new_seed
from tokenmix.ops.kernels import on_hopper, usable
from tokenmix.ops.reference import visibility

SMALL = 1 << 22  # logits that are simply held: 16 MiB in float32


def attend(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    *,
    key_bias: Tensor | None = None,
    tile: tuple[Tensor, Tensor] | None = None,
    lengths: Tensor | None = None,
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
        lengths: [batch], a promise that nobody reads the output at queries from lengths[b] on, which then may be
            anything finite, without gradient: kernels leave it out.
        dropout: probability of dropping an attention weight.

    >>> q, k, v = (torch.randn(2, 4, 10, 16) for _ in range(3))
    >>> attend(q / 4, k, v, causal=True).shape
    torch.Size([2, 4, 10, 16])
    """
    if (q is None) != (k is None):
        raise ValueError("attend takes q and k together, or neither")
    if q is None and bias is None and tile is None:
        raise ValueError("attend needs logits: q and k, a bias or a tile")
    _check(q, k, v, bias, key_bias, tile, mask)
    if v.shape[0] == 0:
        return v.new_zeros(0, v.shape[1], _queries(q, bias, tile), v.shape[3])
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.bool()
    batch, heads, keys, _ = v.shape
    queries = _queries(q, bias, tile)
    bare = lengths is None and not dropout
    if _fits_kernel(q, k, v, bias, key_bias, tile, mask, bare):
        from tokenmix.ops.kernels.attend import fused_attend

        assert q is not None
        assert k is not None
        few_terms = bare and key_bias is None and (mask is None or mask.dim() == 2)
        if few_terms and _gains_by_spreading(q, k, v):
            q, k = (_spread(t, v) for t in (q, k))
        return fused_attend(
            q, k, v, bias=bias, key_bias=key_bias, mask=mask, lengths=lengths, causal=causal, dropout=dropout
        )
    trainable_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    plain = transformed()
    small = batch * heads * queries * keys <= SMALL
    if q is None or k is None or tile is not None or trainable_bias or plain or (not v.is_cuda and (small or dropout)):
        if small or plain:
            factor = kept(new_seed(v.device), v, slice(0, batch), slice(0, queries), dropout) if dropout else None
            out = rows(q, k, v, bias, key_bias, *(tile or (None, None)), mask, 0 if causal else -1, factor=factor)
        else:
            q, k = (t if t is None else t.to(v.dtype) for t in (q, k))  # under autocast what is learned is wider
            out = chunked(q, k, v, bias, key_bias, tile, mask, causal, dropout)
    else:
        out = _fused(q, k, v, bias, key_bias, mask, causal, dropout)
    if mask is not None:  # a query that sees nothing gives 0, with gradient 0
        if causal and mask.dim() == 2 and queries == keys:  # without the [queries, keys] square
            sees = mask.cumsum(-1)[:, None] > 0
        else:
            sees = visibility(mask, causal, queries, keys, mask.device).any(-1)  # type: ignore[union-attr]
        out = out * sees.unsqueeze(-1).to(out.dtype)
    return out


def attend_packed(
    packed: Tensor,
    q: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    *,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """`attend` where one projection made queries, keys and values: on the way back it gets its gradient in one piece.

    Args:
        packed: queries, keys and values [batch, length, 3, heads, width]; beside q, keys and values [batch, keys, 2, heads,
            width].
        q: [batch, heads, queries, width]

    The rest is as in :func:`attend`.

    >>> attend_packed(torch.randn(2, 10, 3, 4, 16), bias=torch.randn(4, 10, 10)).shape
    torch.Size([2, 4, 10, 16])
    """
    parts = 3 if q is None else 2
    if packed.dim() != 5 or packed.shape[2] != parts:
        raise ValueError(f"packed must be [batch, length, {parts}, heads, width]; got {list(packed.shape)}")
    *first, k, v = (t.transpose(1, 2) for t in packed.unbind(2))
    asking = first[0] if q is None else q
    shared = asking.shape[0] != v.shape[0]
    bare = lengths is None and not dropout
    if not v.shape[0] or shared or not _fits_kernel(asking, k, v, bias, None, None, mask, bare):
        return attend(asking, k, v, bias, mask, causal, lengths=lengths, dropout=dropout)
    _check(asking, k, v, bias, None, None, mask)
    from tokenmix.ops.kernels.attend_packed import fused_packed

    return fused_packed(q, packed, bias, mask, lengths, causal, dropout)


def _check(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
) -> None:
    """Do the shapes fit together?"""
    if v.dim() != 4:
        raise ValueError(f"v must be [batch, heads, keys, width]; got {list(v.shape)}")
    batch, heads, keys, _ = v.shape
    queries = None
    if q is not None and k is not None:
        _need("q", q, batch, heads=heads, queries=None, width=None)
        _need("k", k, batch, heads=heads, keys=keys, width=q.shape[3])
        queries = q.shape[2]
    if tile is not None:
        _need("A of the tile", tile[0], batch, heads=heads, queries=queries, a=None)
        queries = tile[0].shape[2]
        _need("B of the tile", tile[1], batch, heads=heads, queries=queries, b=None)
        a, b = tile[0].shape[3], tile[1].shape[3]
        if a * b < keys:
            raise ValueError(f"a tile of a={a} times b={b} does not cover {keys} keys")
    if bias is not None:
        _need("bias", bias, batch if bias.dim() == 4 else None, heads=heads, queries=queries, keys=keys)
    if key_bias is not None:
        _need("key_bias", key_bias, None, heads=heads, keys=keys)
    if mask is not None and mask.shape not in ((batch, keys), (batch, _queries(q, bias, tile), keys)):
        raise ValueError(
            f"mask must be [batch, keys] = {[batch, keys]} or [batch, queries, keys]; got {list(mask.shape)}"
        )


def _need(name: str, t: Tensor, batch: int | None, **sizes: int | None) -> None:
    """t must be [batch or 1, *sizes], without a batch where that is None; a size of None may be any."""
    shape = t.shape if batch is None else t.shape[1:]
    fits = len(shape) == len(sizes) and (batch is None or t.shape[0] in (1, batch))
    if not fits or any(size is not None and size != n for size, n in zip(sizes.values(), shape, strict=True)):
        parts = [] if batch is None else [f"batch={batch} or 1"]
        parts += [part if size is None else f"{part}={size}" for part, size in sizes.items()]
        raise ValueError(f"{name} must be [{', '.join(parts)}]; got {list(t.shape)}")


def _fits_kernel(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    bare: bool = False,
) -> bool:
    """Is our own kernel the fastest way? Where there is nothing but q, k and v, PyTorch's mostly is.

    bare: there are neither lengths nor dropout.
    """
    if q is None or k is None or tile is not None or (bias is not None and bias.dim() != 3):
        return False
    plain = bias is None and key_bias is None and mask is None
    few = q.shape[-2] < 16 or max(q.shape[-1], v.shape[-1]) > 128  # decoding steps; tiles that would not fit
    return not few and usable(v) and (not plain or (bare and _crosses(q, k, v)))


def _crosses(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Is it a training step's attention from fewer queries to more keys, in what the kernels for Hopper GPUs take?"""
    training = (q.requires_grad or k.requires_grad or v.requires_grad) and v.dtype != torch.float32
    alike = q.dtype == k.dtype == v.dtype and q.shape[0] == k.shape[0] == v.shape[0] and q.shape[-1] == v.shape[-1]
    side_by_side = all(t.stride(-1) == 1 and (t.stride(1) == 64 or t.shape[1] == 1) for t in (q, k, v))
    return training and alike and side_by_side and crossing(v, q.shape[-2], v.shape[-2], v.shape[-1])


def crossing(x: Tensor, queries: int, keys: int, width: int) -> bool:
    """Is attention of so many queries and keys, in heads of this width, for the kernels for Hopper GPUs even without bias
    and mask? That is so for fewer queries than keys in a training step."""
    sizes = 16 <= queries < keys <= 512 and width == 64
    narrow = product_dtype(x) in (torch.bfloat16, torch.float16)
    return sizes and narrow and x.is_cuda and torch.is_grad_enabled() and on_hopper()


def _gains_by_spreading(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Is it worth a copy for each example of what the batch shares, for the kernels for Hopper GPUs want one?"""
    shared = (q.shape[0] == 1) != (k.shape[0] == 1) and v.shape[0] > 1
    sizes = q.shape[-1] == v.shape[-1] == 64 and v.shape[-2] <= 512
    return shared and sizes and v.is_cuda and v.dtype in (torch.bfloat16, torch.float16) and on_hopper()


def _spread(t: Tensor, v: Tensor) -> Tensor:
    """t for every example of v, the heads of a position side by side in memory; its gradient is summed."""
    if t.shape[0] == v.shape[0]:
        return t
    return t.to(v.dtype).transpose(1, 2).expand(v.shape[0], -1, -1, -1).contiguous().transpose(1, 2)


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
    added = per_key(key_bias, mask if full_mask is None else None, v)
    q = q.expand(batch, -1, -1, -1)
    k = k.expand(batch, -1, -1, -1)
    if added is not None:
        q = torch.cat([q, q.new_ones(*q.shape[:-1], 1)], -1)
        k = torch.cat([k, added.to(k.dtype).expand(batch, heads, -1).unsqueeze(-1)], -1)
    # the fast kernels want equal widths
    if q.shape[-1] != width:
        q, k, v = (pad(t, (0, max(q.shape[-1], width) - t.shape[-1])) for t in (q, k, v))
    logits_mask = None
    if bias is not None or full_mask is not None:
        logits_mask = _as_bias(bias, full_mask, causal, q.shape[-2], keys, q)
        causal = False
    out = scaled_dot_product_attention(q, k, v, logits_mask, dropout_p=dropout, is_causal=causal, scale=1.0)
    return out[..., :width]


def _as_bias(bias: Tensor | None, mask: Tensor | None, causal: bool, queries: int, keys: int, like: Tensor) -> Tensor:
    """Bias, mask and causality as one additive 4-D tensor, its batch kept at 1 where that is possible."""
    added = (
        like.new_zeros(1, 1, queries, keys)
        if bias is None
        else (bias if bias.dim() == 4 else bias[None]).to(like.dtype)
    )
    if mask is not None:
        added = added.masked_fill(~mask[:, None], MASKED)
    if causal:
        added = added.masked_fill(future(0, queries, keys, like.device), MASKED)
    return added
