"""`persist` as one custom operator on the kernels of `mix` and `outer`, forward and backward.

`torch.ops.tokenmix.persist(w, x, …)` = epilogue(r ⊙ (W·(m ⊙ x))) and what the way back needs. Gradients for w, x, r, u,
bias, addend and alpha. It is opaque to `torch.compile`, which therefore finds no reason to break the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.ops.epilogue import Compose, Epilogue, Gate
from tokenmix.ops.kernels.mix import mix, prepare
from tokenmix.ops.kernels.outer import outer
from tokenmix.ops.kernels.rows import alpha_grad, row_dot
from tokenmix.ops.kernels.weights import logits_grad, softmax_weights
from tokenmix.ops.once import once


def fused_persist(
    w: Tensor,
    x: Tensor,
    *,
    softmax: bool = False,
    row: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """epilogue(r ⊙ (W·(m ⊙ x))): w [heads, queries, keys], x [batch, keys, channels], r [batch, queries, heads].

    `softmax`: w are W's logits. `causal`: W is 0 right of its diagonal, which is a promise unless w are logits.
    """
    u: Tensor | None = None
    bias: Tensor | None = None
    addend: Tensor | None = None
    alpha: Tensor | None = None
    mode, value = "plain", 0.0
    if isinstance(epilogue, Compose):
        mode = "compose"
        if isinstance(epilogue.alpha, Tensor):
            alpha = _as_alpha(epilogue.alpha, x)
        else:
            value = float(epilogue.alpha)
    elif isinstance(epilogue, Gate):
        mode, bias = "gate", None if epilogue.bias is None else epilogue.bias.contiguous()
        u = epilogue.u.to(x.dtype).expand(x.shape[0], w.shape[1], x.shape[2])
        addend = None if epilogue.addend is None else epilogue.addend.expand_as(u)
    tensors = (w, x, row, u, bias, addend, alpha)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    arguments = (w, x, row, mask, softmax, causal, mode, u, bias, addend, alpha, value, keep)
    if torch.compiler.is_compiling():
        return torch.ops.tokenmix.persist(*arguments)[0]
    return _Eager.apply(*arguments)


def _as_alpha(alpha: Tensor, x: Tensor) -> Tensor:
    """[channels], or [batch, length, channels]; a scalar spreads over the channels with stride 0."""
    shape = x.shape[-1:] if alpha.dim() <= 1 else x.shape
    return alpha.expand(shape)


def _prepared(w: Tensor, dtype: torch.dtype, softmax: bool, causal: bool, transpose: bool = False) -> Tensor:
    """W for `mix`."""
    if softmax:
        return softmax_weights(w, dtype, causal=causal, transpose=transpose)
    return prepare(w, dtype, transpose=transpose)


@torch.library.custom_op("tokenmix::persist", mutates_args=())
def persist_op(
    w: Tensor,
    x: Tensor,
    row: Tensor | None,
    mask: Tensor | None,
    softmax: bool,
    causal: bool,
    mode: str,
    u: Tensor | None,
    bias: Tensor | None,
    addend: Tensor | None,
    alpha: Tensor | None,
    alpha_value: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """(y, kept): kept is s of "compose" or f of "gate", empty where nothing needs a gradient."""
    y = x.new_empty(x.shape[0], w.shape[1], x.shape[2])
    kept = torch.empty_like(y) if keep and mode != "plain" else x.new_empty(0)
    mix(
        _prepared(w, x.dtype, softmax, causal), x, y, keys=w.shape[2], mode=mode, extra=kept if kept.numel() else None,
        own=x if mode == "compose" else u, other=addend, bias=bias, alpha=alpha, alpha_value=alpha_value, row=row,
        mask=mask, causal=int(causal),
    )  # fmt: skip
    return y, kept


@persist_op.register_fake
def _(w, x, row, mask, softmax, causal, mode, u, bias, addend, alpha, alpha_value, keep):
    y = x.new_empty(x.shape[0], w.shape[1], x.shape[2])
    return y, torch.empty_like(y) if keep and mode != "plain" else x.new_empty(0)


@torch.library.custom_op("tokenmix::persist_backward", mutates_args=())
def persist_backward(
    g: Tensor,
    w: Tensor,
    x: Tensor,
    y: Tensor,
    kept: Tensor,
    row: Tensor | None,
    mask: Tensor | None,
    softmax: bool,
    causal: bool,
    mode: str,
    u: Tensor | None,
    bias: Tensor | None,
    alpha: Tensor | None,
    alpha_value: float,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of w, x, row, u, bias, addend, alpha; empty where `needs` says that nobody asks."""
    need_w, need_x, need_row, need_u, need_bias, need_addend, need_alpha = needs
    nothing = [g.new_empty(0) for _ in needs]
    dw, dx, drow, du, dbias, daddend, dalpha = nothing
    heads = w.shape[0]
    g = g if g.stride(-1) == 1 else g.contiguous()  # a sum's gradient comes with strides of 0
    ds, sums = g, None
    if need_w or mode != "plain" or row is not None:
        raw, ds, sums = outer(
            g, x, heads, mode=mode, own=x if mode == "compose" else u, alpha=alpha, alpha_value=alpha_value, row=row,
            mask=mask, causal=causal, total=need_bias, whole=not softmax,
        )  # fmt: skip
        if need_w:
            dw = (logits_grad(w, raw, causal=causal) if softmax else raw).to(w.dtype)
    if need_bias and sums is not None and bias is not None:
        dbias = sums.to(bias.dtype)
    if need_addend:
        daddend = ds
    if need_x or need_u:
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        du = torch.empty_like(dx) if need_u else du
        grad_mode = {"plain": "plain", "compose": "compose_grad", "gate": "gate_grad" if need_u else "plain"}[mode]
        mix(
            _prepared(w, x.dtype, softmax, causal, transpose=True), ds, dx, keys=w.shape[1], mode=grad_mode,
            extra=du if need_u else None, own=g if grad_mode != "plain" else None,
            other=kept if grad_mode != "plain" else None, alpha=alpha, alpha_value=alpha_value,
            row=None if mask is None else mask.unsqueeze(-1).expand(-1, -1, heads), causal=-int(causal),
        )  # fmt: skip
    if need_row and row is not None:  # ds holds r already: dr = Σ_c ds ⊙ s / r²
        s = y if mode == "plain" else kept
        dots = row_dot(ds, s, heads)
        drow = torch.where(row > 0, dots / row / row, 0.0).to(row.dtype).contiguous()  # as the compiler is told
    if need_alpha and alpha is not None:
        dalpha = alpha_grad(g, kept, x, alpha)
    return dw, dx, drow, du, dbias, daddend, dalpha


@persist_backward.register_fake
def _(g, w, x, y, kept, row, mask, softmax, causal, mode, u, bias, alpha, alpha_value, needs):
    nothing = g.new_empty(0)
    like = (w, x, row, u, bias, y, alpha)
    out = []
    for i, (t, need) in enumerate(zip(like, needs, strict=True)):
        wanted = need or (i == 1 and needs[3])
        out.append(g.new_empty(0) if not wanted or t is None else t.new_empty(t.shape))
    return tuple(out) if out else (nothing,) * 7


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # no zeros for the gradient of what is kept
    w, x, row, mask, ctx.softmax, ctx.causal, ctx.mode, u, bias, _, alpha, ctx.alpha_value, _ = inputs
    y, kept = output
    # y is needed only for the gradient of r, and only where no s is kept
    made = y if row is not None and ctx.mode == "plain" else kept
    ctx.save_for_backward(w, x, made, kept, row, mask, u, bias, alpha)


def _backward(ctx: Any, g: Tensor | None, _: Tensor | None, back: Any = persist_backward) -> tuple[Tensor | None, ...]:
    if g is None:
        return (None,) * 13
    w, x, y, kept, row, mask, u, bias, alpha = ctx.saved_tensors
    asked = ctx.needs_input_grad
    needs = [asked[i] for i in (0, 1, 2, 7, 8, 9, 10)]  # w, x, row, u, bias, addend, alpha
    how = (ctx.softmax, ctx.causal, ctx.mode)
    grads = back(g, w, x, y, kept, row, mask, *how, u, bias, alpha, ctx.alpha_value, needs)
    dw, dx, drow, du, dbias, daddend, dalpha = (t if need else None for t, need in zip(grads, needs, strict=True))
    return dw, dx, drow, None, None, None, None, du, dbias, daddend, dalpha, None, None


persist_op.register_autograd(_backward, setup_context=_setup)
once(persist_backward)


class _Eager(torch.autograd.Function):
    """The same operator without the dispatcher's way around Python, which costs as much as small kernels run."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = persist_op._init_fn(*inputs)
        _setup(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        # the dispatcher keeps a record, for those who ask for gradients of gradients and are to hear that there are none
        return _backward(ctx, g, None, persist_backward if torch.is_grad_enabled() else persist_backward._init_fn)
