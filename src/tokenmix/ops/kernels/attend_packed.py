"""`attend` where one projection made queries, keys and values, or keys and values, and gets its gradient in one piece.

`torch.ops.tokenmix.attend_packed(q, packed, bias, mask, lengths, seed, causal, dropout)`, packed [batch, length, 3, heads,
width], or [batch, length, 2, heads, width] beside q, runs the kernels of `attend` on views; on the way back they fill views
of one tensor, so that the projection's gradients are one product each, and nobody adds or joins what several would give.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.ops.dropout import new_seed
from tokenmix.ops.kernels.attend import attend_op, gradients, rows_first, turned_like
from tokenmix.ops.once import once


def views(q: Tensor | None, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, [batch, heads, length, width]."""
    *first, k, v = (t.transpose(1, 2) for t in packed.unbind(2))
    return first[0] if q is None else q, k, v


@torch.library.custom_op("tokenmix::attend_packed", mutates_args=())
def packed_op(
    q: Tensor | None, packed: Tensor, bias: Tensor | None, mask: Tensor | None, lengths: Tensor | None,
    seed: Tensor | None, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `attend` gives: out, [batch, heads, queries, width], and log₂ of each row's sum."""
    return attend_op._init_fn(*views(q, packed), bias, None, mask, lengths, seed, causal, dropout)


@packed_op.register_fake
def _(q, packed, bias, mask, lengths, seed, causal, dropout):
    batch, length, _, heads, width = packed.shape
    queries = length if q is None else q.shape[2]
    out = packed.new_empty(batch, queries, heads, width).transpose(1, 2)
    return out, packed.new_empty(batch, heads, queries, dtype=torch.float32)


@torch.library.custom_op("tokenmix::attend_packed_backward", mutates_args=())
def packed_backward(
    g: Tensor, q: Tensor | None, packed: Tensor, bias: Tensor | None, mask: Tensor | None, lengths: Tensor | None,
    seed: Tensor | None, causal: bool, dropout: float, out: Tensor, lse: Tensor, need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, of what is packed, and of the bias; empty where there is no q, and where nobody asks."""
    whole = torch.empty_like(packed, memory_format=torch.contiguous_format)
    dq = None if q is None else rows_first(q)
    given = (*views(q, packed), bias, None, mask, lengths, seed, causal, dropout)
    dbias, _ = gradients(g, *given, out, lse, [need_bias, False], *views(dq, whole))
    return packed.new_empty(0) if dq is None else dq, whole, dbias


@packed_backward.register_fake
def _(g, q, packed, bias, mask, lengths, seed, causal, dropout, out, lse, need_bias):
    dq = packed.new_empty(0) if q is None else rows_first(q)
    return dq, packed.new_empty(packed.shape), turned_like(bias) if need_bias else packed.new_empty(0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, g: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if g is None:
        return (None,) * 8
    *given, out, lse = ctx.saved_tensors
    need_bias = ctx.needs_input_grad[2]
    arguments = (g, *given, ctx.causal, ctx.dropout, out, lse, need_bias)
    dq, whole, dbias = torch.ops.tokenmix.attend_packed_backward(*arguments)
    return None if given[0] is None else dq, whole, dbias if need_bias else None, *(None,) * 5


packed_op.register_autograd(_backward, setup_context=_setup)
once(packed_backward)


def fused_packed(
    q: Tensor | None, packed: Tensor, bias: Tensor | None, mask: Tensor | None, lengths: Tensor | None, causal: bool,
    dropout: float,
) -> Tensor:  # fmt: skip
    """See :func:`tokenmix.ops.attend.attend_packed`."""
    q = q if q is None else q.to(packed.dtype)
    bias = bias if bias is None else bias.to(packed.dtype)  # half the bytes; its gradient is summed in float32
    mask = mask if mask is None else mask.bool().expand(packed.shape[0], *mask.shape[1:])
    seed = new_seed(packed.device) if dropout else None
    return torch.ops.tokenmix.attend_packed(q, packed, bias, mask, lengths, seed, causal, dropout)[0]
