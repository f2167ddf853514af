"""The operators as the papers write them: plain torch, one line per equation, nothing clever.

Every faster path is tested against these for outputs and for every gradient. They run in float64 when given float64;
lower precisions are computed in float32.

Letters: b batch, h heads, i query position, j key position, d channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, linear

from tokenmix.ops.epilogue import Compose, Epilogue, Gate


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
    """softmax(q·kᵀ + bias + key_bias + tile)·v over the visible keys; a query that sees nothing gives 0.

    Also queries that nobody reads (`lengths`) are computed.
    """
    weights = attention_weights(q, k, v.shape, bias=bias, key_bias=key_bias, tile=tile, mask=mask, causal=causal)
    weights = torch.dropout(weights, dropout, dropout > 0)
    return torch.einsum("bhij,bhjd->bhid", weights, _up(v).expand(weights.shape[0], -1, -1, -1)).to(v.dtype)


def attention_weights(
    q: Tensor | None,
    k: Tensor | None,
    shape: torch.Size,
    *,
    bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    tile: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The mixing matrix [b, h, i, j] itself, for `shape` = the shape [b, h, j, d] of the values."""
    batch, heads, keys, _ = shape
    logits: Tensor | None = None
    if q is not None and k is not None:
        logits = _up(q) @ _up(k).transpose(-1, -2)
    if bias is not None:
        logits = _add(logits, _up(bias if bias.dim() == 4 else bias[None]))
    if key_bias is not None:
        logits = _add(logits, _up(key_bias)[None, :, None, :])
    if tile is not None:  # C = H_A(A) * H_B(B):  C[i, j] = A[i, j mod a] · B[i, j div a]    Synthesizer, Eq. 6
        a, b = map(_up, tile)
        j = torch.arange(keys, device=a.device)
        logits = _add(logits, a[..., j % a.shape[-1]] * b[..., j // a.shape[-1]])
    if logits is None:
        raise ValueError("attend needs logits: q and k, a bias, a key_bias or a tile")
    logits = logits.expand(batch, heads, -1, -1)
    visible = visibility(mask, causal, logits.shape[-2], keys, logits.device)
    if visible is None:
        return torch.softmax(logits, -1)
    weights = torch.softmax(logits.masked_fill(~visible, float("-inf")), -1)
    return torch.where(visible.any(-1, keepdim=True), weights, 0.0)


def persist(
    weight: Tensor,
    x: Tensor,
    epilogue: Epilogue | None = None,
    *,
    softmax: bool = False,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """epilogue(W·x) with W [i, j] or [h, i, j] shared by the batch; heads split the channels of x [b, j, h·d]."""
    w = persistent_weights(weight, mask, causal, softmax=softmax)
    if dropout:  # one draw for the whole batch
        w = w * torch.dropout(torch.ones_like(w[0]), dropout, True)
    s = torch.einsum(
        "bhij,bjhd->bihd", w.expand(x.shape[0], -1, -1, -1), _up(x).unflatten(-1, (w.shape[1], -1))
    ).flatten(-2)
    return apply_epilogue(s, _up(x), epilogue).to(x.dtype)


def persistent_weights(weight: Tensor, mask: Tensor | None, causal: bool, *, softmax: bool = True) -> Tensor:
    """The mixing matrix [b, h, i, j] that each example sees of a persistent W; batch 1 where all see the same."""
    w = _up(weight if weight.dim() == 3 else weight[None])[None]
    visible = visibility(mask, causal, w.shape[-2], w.shape[-1], w.device)
    if visible is None:
        return torch.softmax(w, -1) if softmax else w
    if not softmax:
        return w.masked_fill(~visible, 0.0)
    return torch.where(visible.any(-1, keepdim=True), torch.softmax(w.masked_fill(~visible, float("-inf")), -1), 0.0)


def apply_epilogue(s: Tensor, x: Tensor, epilogue: Epilogue | None) -> Tensor:
    """What happens to s = W·x on its way out."""
    if epilogue is None:
        return s
    if isinstance(epilogue, Compose):
        # X_C = α (X_S ⊙ X') + (1 − α)(X' − X_S)        Remixer, Sec. 2.1.2
        alpha = epilogue.alpha
        return alpha * (s * x) + (1 - alpha) * (x - s)
    if isinstance(epilogue, Gate):
        # s(Z) = Z₁ ⊙ (W Z₂ + b)        gMLP, Eq. 4; the addend is aMLP's tiny attention
        u, bias, addend = epilogue
        f = s + bias[:, None] if bias is not None else s
        return u * (f if addend is None else f + addend)
    raise TypeError(f"epilogue must be None, Compose or Gate; got {type(epilogue).__name__}")


def visibility(mask: Tensor | None, causal: bool, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Which key each query may see, [b or 1, 1, i, j], or None for all. `mask` is [b, j] or [b, i, j], True = real."""
    visible = None
    if mask is not None:
        visible = mask.bool()[:, None, None, :] if mask.dim() == 2 else mask.bool()[:, None]
    if causal:
        i = torch.arange(queries, device=device)[:, None]
        triangle = torch.arange(keys, device=device)[None, :] <= i
        visible = triangle[None, None] if visible is None else visible & triangle
    return visible


def toeplitz(w: Tensor, length: int) -> Tensor:
    """W[i, j] = w[n − 1 + j − i] for the 2n − 1 parameters w, cut to `length`.        gMLP, App. C"""
    n = (w.shape[-1] + 1) // 2
    i = torch.arange(length, device=w.device)
    return w[..., n - 1 + i[None, :] - i[:, None]]


def geglu(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """(gelu(x W₁ᵀ) ⊙ x W₂ᵀ) W₃ᵀ, gelu in its tanh form.        GLU variants, Eq. 6, as T5.1.1 has it"""
    a, b = linear(_up(x), _up(w1)), linear(_up(x), _up(w2))
    return linear(gelu(a, approximate="tanh") * b, _up(w3)).to(x.dtype)


def linear_cross_entropy(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    count: Tensor | int | None = None,
) -> Tensor:
    """Mean over the real labels of −(1 − ε) log p(y) − ε/V Σ_v log p(v) + z log²Z, p = softmax(h Wᵀ + b) = exp(…)/Z."""
    logits = _up(linear(_up(states), _up(weight), None if bias is None else _up(bias))).flatten(0, -2)
    labels = labels.flatten()
    real = labels != ignore_index
    total = cross_entropy(
        logits, labels, None, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
    )
    if z_loss:
        total = total + z_loss * (torch.logsumexp(logits, -1).square() * real).sum()
    return total / (real.sum().clamp_min(1) if count is None else count)


def _add(logits: Tensor | None, more: Tensor) -> Tensor:
    return more if logits is None else logits + more


def _up(t: Tensor) -> Tensor:
    """At least float32, never down from float64."""
    return t.to(torch.promote_types(t.dtype, torch.float32))
