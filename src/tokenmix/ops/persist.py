"""persist(W, x) = epilogue(W·x): a mixing matrix shared by the whole batch.

Padding is exact and costs one product for a batch of different lengths: with E = exp(H − rowmax), the softmax over the
real tokens of an example is (E·(m ⊙ x)) / (E·m).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.devices import product_dtype, readable, transformed
from tokenmix.ops import reference
from tokenmix.ops.epilogue import Compose, Epilogue, Gate
from tokenmix.ops.kernels import usable

FLOOR = -80.0  # exp(−80) is still a normal float32 and bf16 number
VANISHING = 1e-25  # a denominator this small means that a row sees only weights near the floor


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
    """epilogue(W·x) with one W for the whole batch.

    Args:
        weight: [queries, keys] or [heads, queries, keys]; logits if `softmax`, else the matrix itself.
        x: [batch, keys, channels]; heads split the channels.
        epilogue: :class:`Compose`, :class:`Gate` or None.
        softmax: normalise each row of `weight` over the tokens it sees.
        mask: [batch, keys], True for real tokens; padding contributes nothing. A row all of whose visible weights lie
            more than e^57 below its largest is computed by the reference; compiled graphs cannot ask that question, and
            under vmap every row is.
        causal: query i sees keys j ≤ i only.
        dropout: probability of dropping an entry of the matrix, drawn once per batch.

    >>> persist(torch.zeros(4, 4), torch.ones(2, 4, 8), softmax=True).shape
    torch.Size([2, 4, 8])
    """
    if weight.dim() not in (2, 3):
        raise ValueError(f"W must be [queries, keys] or [heads, queries, keys]; got {list(weight.shape)}")
    w = weight if weight.dim() == 3 else weight[None]
    heads, queries, keys = w.shape
    if x.dim() != 3 or x.shape[1] != keys:
        raise ValueError(f"x must be [batch, {keys}, channels] to fit W [{queries}, {keys}]; got {list(x.shape)}")
    if x.shape[-1] % heads:
        raise ValueError(f"{heads} heads do not divide the {x.shape[-1]} channels of x")
    if mask is not None and mask.shape != x.shape[:2]:
        raise ValueError(f"mask must be [batch, keys] = {list(x.shape[:2])}; got {list(mask.shape)}")
    if isinstance(epilogue, Compose) and queries != keys:
        raise ValueError(f"Compose needs a row of x for each row of W: W is [{queries}, {keys}], not square")
    half = product_dtype(x) == torch.float16  # E is never fp16
    if usable(x) and not (softmax and mask is not None and (half or isinstance(epilogue, Gate))):
        return _on_kernels(w, x, softmax, mask, causal, dropout, epilogue)
    w = w.to(torch.promote_types(w.dtype, torch.float32))
    triangle = torch.ones(queries, keys, dtype=torch.bool, device=w.device).tril() if causal else None
    seen = x if mask is None else x * mask.unsqueeze(-1).to(x.dtype)  # m ⊙ x
    if not softmax:
        w = w if triangle is None else w * triangle
        s = shared_matmul(_drop(w, dropout).to(x.dtype), seen)
    elif mask is None:
        w = torch.softmax(w if triangle is None else w.masked_fill(~triangle, float("-inf")), -1)
        s = shared_matmul(_drop(w, dropout).to(x.dtype), seen)
    elif x.device.type == "cpu" and heads == 1 and queries <= x.shape[-1] and keys and not dropout:
        # a CPU waits for memory: a matrix per example is smaller than x, which then is read once
        s = torch.bmm(reference.persistent_weights(w, mask, causal)[:, 0].to(x.dtype), x)
    else:
        # softmax over the real tokens = (E·(m ⊙ x)) / (E·m),  E = exp(H − rowmax)
        w = w if triangle is None else w.masked_fill(~triangle, float("-inf"))
        e = torch.exp((w - w.detach().amax(-1, keepdim=True)).clamp_min(FLOOR))
        e = (e if triangle is None else e * triangle).to(x.dtype if x.dtype != torch.float16 else torch.float32)
        m = mask.to(w.dtype)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):  # the meta device has none
            total = torch.einsum("hij,bj->bih", e.to(w.dtype), m)  # the same rounded E in both products
        if _vanishes(total, m, causal):
            return reference.persist(
                weight, x, softmax=True, mask=mask, causal=causal, dropout=dropout, epilogue=epilogue
            )
        s = shared_matmul(_drop(e, dropout), seen.to(e.dtype)).unflatten(-1, (heads, -1))
        s = (s * torch.where(total > 0, 1 / total.clamp_min(VANISHING), 0.0).unsqueeze(-1)).flatten(-2).to(x.dtype)
    return _finish(s, x, epilogue)


def _on_kernels(
    w: Tensor, x: Tensor, softmax: bool, mask: Tensor | None, causal: bool, dropout: float, epilogue: Epilogue | None
) -> Tensor:
    """The same on fused kernels: x is read once, the result written once, and the epilogue happens in between."""
    from tokenmix.ops.kernels.persist import fused_persist
    from tokenmix.ops.kernels.weights import WIDEST

    x = x.to(product_dtype(x))
    queries, keys = w.shape[1:]
    mask = mask if mask is None or mask.dtype == torch.bool else mask.bool()
    logits, w, row = w, w.float(), None
    if softmax and mask is None and not dropout and keys <= WIDEST:
        return fused_persist(logits, x, softmax=True, causal=causal, epilogue=epilogue)
    triangle = torch.ones(queries, keys, dtype=torch.bool, device=w.device).tril() if causal else None
    if not softmax:
        w = w if triangle is None else w * triangle
    elif mask is None:
        w = torch.softmax(w if triangle is None else w.masked_fill(~triangle, float("-inf")), -1)
    else:
        w = w if triangle is None else w.masked_fill(~triangle, float("-inf"))
        w = torch.exp((w - w.detach().amax(-1, keepdim=True)).clamp_min(FLOOR))
        w = (w if triangle is None else w * triangle).to(x.dtype).float()  # the same rounded E in both products
        with torch.autocast(x.device.type, enabled=False):
            total = torch.einsum("hij,bj->bih", w, mask.float())
        if _vanishes(total, mask.float(), causal):
            return reference.persist(
                logits, x, softmax=True, mask=mask, causal=causal, dropout=dropout, epilogue=epilogue
            )
        row = torch.where(total > 0, 1 / total.clamp_min(VANISHING), 0.0)
    return fused_persist(_drop(w, dropout), x, row=row, mask=mask, causal=causal, epilogue=epilogue)


class _SharedMatmul(torch.autograd.Function):
    """W [h, i, j] times x [b, j, h·d], W shared by the batch.

    `torch.matmul` broadcasts by transposing and copying x, and its gradient holds one copy of dW per example; here the
    batch is a stride of 0 on the way forward and part of the contraction on the way back.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(w, x)
        return _product(w, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        w, x = ctx.saved_tensors
        heads = w.shape[0]
        dw = dx = None
        if ctx.needs_input_grad[0]:
            dw = torch.einsum("bihd,bjhd->hij", grad.unflatten(-1, (heads, -1)), x.unflatten(-1, (heads, -1)))
        if ctx.needs_input_grad[1]:
            dx = _product(w.transpose(-1, -2), grad)
        return dw, dx


def shared_matmul(w: Tensor, x: Tensor) -> Tensor:
    """W [h, i, j] · x [b, j, h·d] → [b, i, h·d]; under autocast in its dtype, else in that of W."""
    dtype = product_dtype(w)
    multiply = _product if transformed() else _SharedMatmul.apply
    return multiply(w.to(dtype), x.to(dtype))


def _product(w: Tensor, x: Tensor) -> Tensor:
    heads = w.shape[0]
    if heads == 1:
        return torch.bmm(w.expand(x.shape[0], -1, -1), x)
    return torch.einsum("hij,bjhd->bihd", w, x.unflatten(-1, (heads, -1))).flatten(-2)


def _finish(s: Tensor, x: Tensor, epilogue: Epilogue | None) -> Tensor:
    """The epilogue in few passes over memory, in place where nobody will ask for s again."""
    if transformed():
        return reference.apply_epilogue(s, x, epilogue)
    eager = not torch.compiler.is_compiling()
    if isinstance(epilogue, Gate) and epilogue.bias is not None:
        # u's type and s's: a wider bias would widen the result
        epilogue = epilogue._replace(bias=epilogue.bias.to(s.dtype))
    if isinstance(epilogue, Gate) and not torch.is_grad_enabled() and s.dtype == epilogue.u.dtype:
        u, bias, addend = epilogue
        f = s if bias is None else s.add_(bias[:, None])
        return (f if addend is None else f.add_(addend)).mul_(u)
    if isinstance(epilogue, Compose) and isinstance(epilogue.alpha, float) and eager and s.dtype == x.dtype:
        return _Compose.apply(s, x, epilogue.alpha)
    return reference.apply_epilogue(s, x, epilogue)


class _Compose(torch.autograd.Function):
    """y = α s x + (1 − α)(x − s).   ds = g (α x − (1 − α)),  dx = g (α s + (1 − α))"""

    @staticmethod
    def forward(ctx: Any, s: Tensor, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(s, x)
        ctx.alpha = alpha
        return (x - s).mul_(1 - alpha).addcmul_(s, x, value=alpha)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (s, x), alpha = ctx.saved_tensors, ctx.alpha
        plain = grad * (1 - alpha)
        return torch.addcmul(-plain, grad, x, value=alpha), plain.addcmul_(grad, s, value=alpha), None


def _drop(w: Tensor, dropout: float) -> Tensor:
    return torch.dropout(w, dropout, True) if dropout else w


def _vanishes(total: Tensor, m: Tensor, causal: bool) -> bool:
    """Does a row see tokens, yet only with weights below what exp resolves? Where that cannot be asked: no in a graph,
    which has one way to go; yes under vmap, which can take the way that is always right."""
    if not readable(total):
        return transformed()
    rows = total.shape[1]
    reach = torch.arange(rows, device=m.device).clamp(max=m.shape[1] - 1)  # the last key that a row may see
    sees = (m.cumsum(-1)[:, reach] if causal else m.sum(-1, keepdim=True)).unsqueeze(-1) > 0
    return bool(((total < VANISHING) & sees).any())
