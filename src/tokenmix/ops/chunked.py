"""Attention in blocks of examples and queries, each computed again on the way back instead of stored.

This is the path for what fused attention cannot do on a CPU: a bias that needs a gradient, tiled logits, dropout; and for
tiled logits on a GPU. It is a custom operator, so that compiled graphs take it whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tokenmix.ops.dropout import kept, new_seed
from tokenmix.ops.once import once

MASKED = -30000.0  # finite, so that a row that sees nothing stays finite; exp(−30000) is 0 in every precision
BLOCK = 1 << 19  # logits held at once: 2 MiB in float32, about a core's cache
BLOCK_GPU = 1 << 26  # 256 MiB: a block has to keep the whole GPU busy


def rows(*given: Any, factor: Tensor | None = None) -> Tensor:
    """Attention of some query rows; arguments as of `weights`, and a factor for each weight."""
    v = given[2]
    w = weights(*given).to(v.dtype)
    return (w if factor is None else w * factor) @ v


def weights(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile_a: Tensor | None,
    tile_b: Tensor | None,
    mask: Tensor | None,
    first: int,
) -> Tensor:
    """softmax(…) of some query rows; `first` is their first position where attention is causal, else −1."""
    keys = v.shape[-2]
    logits = None if q is None or k is None else q @ k.transpose(-1, -2)
    if tile_a is not None and tile_b is not None:
        # A[i, j mod a]·B[i, j div a] is the outer product of the two vectors, read row by row
        tiled = (tile_b.unsqueeze(-1) * tile_a.unsqueeze(-2)).flatten(-2)[..., :keys]
        logits = tiled if logits is None else logits + tiled
    if bias is not None:
        bias = bias if bias.dim() == 4 else bias[None]
        logits = bias if logits is None else logits + bias
    if key_bias is not None:
        logits = key_bias[None, :, None] if logits is None else logits + key_bias[None, :, None]
    assert logits is not None
    if mask is not None:  # the lowest finite number: below every logit, yet a row that sees nothing stays finite
        hidden = ~(mask[:, None, None] if mask.dim() == 2 else mask[:, None])
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    if first >= 0:
        logits = logits.masked_fill(future(first, first + logits.shape[-2], keys, v.device), float("-inf"))
    return torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


def per_key(key_bias: Tensor | None, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """[batch or 1, heads or 1, keys]: what is added to all logits of a key."""
    hidden = None if mask is None else torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, MASKED)[:, None]
    if key_bias is None:
        return hidden
    return key_bias[None] if hidden is None else hidden + key_bias[None]


def future(first: int, last: int, keys: int, device: torch.device) -> Tensor:
    """True where key j lies after query i, for queries first … last − 1."""
    return torch.arange(keys, device=device)[None, :] > torch.arange(first, last, device=device)[:, None]


def chunked(
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
    """softmax(…)·v block by block; arguments as in :func:`tokenmix.ops.attend`."""
    a, b = tile if tile is not None else (None, None)
    seed = new_seed(v.device) if dropout else None
    return _forward(q, k, v, bias, key_bias, a, b, mask, causal, dropout, seed)


# Which dimension of (q, k, v, bias, key_bias, tile_a, tile_b, mask) counts examples and which counts queries. Dimensions
# are counted from the right, so that a bias with and without a batch reads the same.
EXAMPLES = (4, 4, 4, 4, None, 4, 4, None)
QUERIES = (2, None, None, 2, None, 2, 2, None)


def _blocks(given: list[Tensor | None]) -> Iterator[tuple[slice, slice]]:
    v = given[2]
    assert v is not None
    batch, heads, keys, _ = v.shape
    queries = next(t for i in (0, 5, 3) if (t := given[i]) is not None).shape[-2]
    per_row, block = max(1, heads * keys), BLOCK_GPU if v.is_cuda else BLOCK
    height = max(1, min(queries, max(64, block // per_row)))
    width = max(1, min(batch, block // max(1, per_row * height)))
    for e in range(0, batch, width):
        for r in range(0, queries, height):
            yield slice(e, min(e + width, batch)), slice(r, min(r + height, queries))


def _cut(given: list[Tensor | None], examples: slice, queries: slice) -> list[Tensor | None]:
    """The part of every argument that a block needs."""
    parts: list[Tensor | None] = []
    for t, e, r in zip(given, EXAMPLES, QUERIES, strict=True):
        if t is not None:
            if e is not None and t.dim() == e and t.shape[0] > 1:
                t = t[examples]
            if r is not None:
                t = t[..., queries, :]
        parts.append(t)
    mask = given[7]
    if mask is not None:
        parts[7] = mask[examples] if mask.dim() == 2 else mask[examples, queries]
    return parts


@torch.library.custom_op("tokenmix::attend_chunked", mutates_args=())
def _forward(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile_a: Tensor | None,
    tile_b: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    given = [q, k, v, bias, key_bias, tile_a, tile_b, mask]
    out = _empty(given)
    with torch.autocast(v.device.type, enabled=False):
        for examples, queries in _blocks(given):
            part = _cut(given, examples, queries)
            factor = None if seed is None else kept(seed, v, examples, queries, dropout)
            out[examples, :, queries] = rows(*part, queries.start if causal else -1, factor=factor)
    return out


def _empty(given: list[Tensor | None]) -> Tensor:
    v = given[2]
    assert v is not None
    queries = next(t for i in (0, 5, 3) if (t := given[i]) is not None).shape[-2]
    return v.new_empty(*v.shape[:2], queries, v.shape[-1])


@_forward.register_fake
def _(q, k, v, bias, key_bias, tile_a, tile_b, mask, causal, dropout, seed):
    return _empty([q, k, v, bias, key_bias, tile_a, tile_b, mask])


@torch.library.custom_op("tokenmix::attend_chunked_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    tile_a: Tensor | None,
    tile_b: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    seed: Tensor | None,
    wanted: list[bool],
) -> list[Tensor]:
    given = [q, k, v, bias, key_bias, tile_a, tile_b, mask]
    totals = _totals(given, wanted)
    with torch.autocast(v.device.type, enabled=False):
        for examples, queries in _blocks(given):
            part = _cut(given, examples, queries)
            into = _cut([t if t.numel() else None for t in totals], examples, queries)
            factor = None if seed is None else kept(seed, v, examples, queries, dropout)
            found = _block_gradients(grad[examples, :, queries], part, queries.start if causal else -1, factor)
            for total, gradient in zip(into, found, strict=False):
                if total is not None and gradient is not None:
                    total += _fit(gradient, total)
    return totals[:7]


def _block_gradients(
    grad: Tensor, part: list[Any], first: int, factor: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients by q, k, v, bias, key_bias, A and B of one block, before they are summed to the arguments' shapes."""
    q, k, v, _, _, a, b, _ = part
    assert v is not None
    w = weights(*part[:8], first).expand(v.shape[0], v.shape[1], -1, -1)  # type: ignore[call-arg]
    used = w.to(v.dtype) if factor is None else w.to(v.dtype) * factor
    dw = grad @ v.transpose(-1, -2)  # out = W v
    dw = (dw if factor is None else dw * factor).to(w.dtype)
    ds = (w * (dw - (dw * w).sum(-1, keepdim=True))).to(v.dtype)  # W = softmax(S)
    dq = dk = da = db = None
    if q is not None and k is not None:  # S = q kᵀ + …
        dq, dk = ds @ k, ds.transpose(-1, -2) @ q
    if a is not None and b is not None:  # … + A[i, j mod a]·B[i, j div a]
        square = torch.nn.functional.pad(ds, (0, a.shape[-1] * b.shape[-1] - ds.shape[-1])).unflatten(
            -1, (b.shape[-1], a.shape[-1])
        )
        da, db = (square * b.unsqueeze(-1)).sum(-2), (square * a.unsqueeze(-2)).sum(-1)
    return dq, dk, used.transpose(-1, -2) @ grad, ds, ds.sum(-2), da, db


def _fit(gradient: Tensor, total: Tensor) -> Tensor:
    """Sum over the dimensions along which the argument was shared."""
    return gradient.sum_to_size(total.shape) if gradient.shape != total.shape else gradient


def _totals(given: list[Tensor | None], wanted: list[bool]) -> list[Tensor]:
    like = given[2]
    assert like is not None
    return [torch.zeros_like(t, memory_format=torch.contiguous_format) if t is not None and want else like.new_empty(0)
            for t, want in zip(given, [*wanted, False], strict=True)]  # fmt: skip


@_backward.register_fake
def _(grad, q, k, v, bias, key_bias, tile_a, tile_b, mask, causal, dropout, seed, wanted):
    return _totals([q, k, v, bias, key_bias, tile_a, tile_b, mask], wanted)[:7]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal, ctx.dropout, seed = inputs
    ctx.save_for_backward(*tensors, seed)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *given, seed = ctx.saved_tensors
    wanted = [bool(need) and t is not None for need, t in zip(ctx.needs_input_grad[:7], given, strict=False)]
    found = _backward(grad, *given, ctx.causal, ctx.dropout, seed, wanted)
    return (*[g if want else None for g, want in zip(found, wanted, strict=True)], None, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)
once(_backward)
