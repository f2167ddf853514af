"""Cross-entropy of a large vocabulary without its logits: a few thousand tokens at a time, gradients on the way.

    ℓ = −(1 − ε) log p(y) − ε/V Σ_v log p(v) + z log²Z,    p = softmax(h Wᵀ + b),  Z = Σ_v exp(h Wᵀ + b)_v
    ∂ℓ/∂logits = p (1 + 2 z log Z) − (1 − ε) onehot(y) − ε/V

The logits of 32,000 words for 14,592 tokens are 0.9 GB in bf16 and twice that in float32, several times over; here a
block of them exists at a time, turns into its gradient in place, and is multiplied into the gradients of h and W.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.devices import product_dtype, transformed
from tokenmix.ops import reference
from tokenmix.ops.kernels import usable
from tokenmix.ops.linear import product
from tokenmix.ops.once import REFUSAL

BLOCK = 1 << 27  # logits that exist at once: 4,096 tokens of a 32,000-word vocabulary
CACHED = 1 << 18  # logits that are 1 MiB in float32: half of what a core keeps close, for passes that wait for memory


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
    """Mean over the labels that are not `ignore_index` of the loss above.

    Args:
        states: [..., width], what the output layer reads.
        weight, bias: [vocabulary, width] and [vocabulary], the output layer.
        labels: [...].
        count: replaces the number of labels, so that accumulated micro-batches weigh as one batch.

    >>> states, weight = torch.randn(2, 5, 16), torch.randn(100, 16)
    >>> linear_cross_entropy(states, weight, torch.randint(100, (2, 5))).shape
    torch.Size([])
    """
    if states.shape[:-1] != labels.shape:
        raise ValueError(
            f"labels must be {list(states.shape[:-1])} to fit states {list(states.shape)}; got {list(labels.shape)}"
        )
    if transformed():
        return reference.linear_cross_entropy(
            states, weight, labels, bias=bias, ignore_index=ignore_index, label_smoothing=label_smoothing,
            z_loss=z_loss, count=count,
        )  # fmt: skip
    labels = labels.flatten()
    keep = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (states, weight, bias)]
    states = states.to(product_dtype(states))
    if count is None:
        count = (labels != ignore_index).sum().clamp_min(1)
    # a CPU waits for memory, so there the gradients are born with their factor; fp16 on a GPU would lose their digits
    factor = torch.as_tensor(count, dtype=torch.float64).reciprocal() if states.device.type == "cpu" else None
    total = torch.ops.tokenmix.linear_cross_entropy(
        states.flatten(0, -2), weight, bias, labels, factor, ignore_index, label_smoothing, z_loss, keep
    )[0]
    return total / count if factor is None else total


@torch.library.custom_op("tokenmix::linear_cross_entropy", mutates_args=())
def linear_cross_entropy_op(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    factor: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    keep: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`factor` times the sum over tokens, and its gradients for states, weight and bias; empty where `keep` says so."""
    if not states.is_cuda and not bool((real := labels != ignore_index).all()):
        # a CPU may look: what no label asks for (85% of a masked LM's tokens) is not computed at all
        total, d_some, d_weight, d_bias = _linear_cross_entropy(
            states[real], weight, bias, labels[real], factor, ignore_index, label_smoothing, z_loss, keep
        )
        if not keep[0]:
            return total, d_some, d_weight, d_bias
        d_states = torch.zeros_like(states)
        d_states[real] = d_some
        return total, d_states, d_weight, d_bias
    return _linear_cross_entropy(states, weight, bias, labels, factor, ignore_index, label_smoothing, z_loss, keep)


def _linear_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    factor: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    keep: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    exact = torch.promote_types(states.dtype, torch.float32)
    tokens, vocabulary = states.shape[0], weight.shape[0]
    w = weight.to(states.dtype)
    b = None if bias is None else bias.to(states.dtype)
    total = states.new_zeros((), dtype=exact)
    d_states = torch.empty_like(states) if keep[0] else states.new_empty(0)
    d_weight: Tensor | None = None
    d_bias = weight.new_zeros(vocabulary, dtype=exact) if keep[2] else weight.new_empty(0)
    rows = max(1, BLOCK // vocabulary // 128 * 128 or BLOCK // vocabulary)
    with torch.autocast(states.device.type, enabled=False):
        for first in range(0, tokens, rows):
            h, y = states[first : first + rows], labels[first : first + rows]
            logits = product(h, w, b)
            total += _loss(logits, y, factor, ignore_index, label_smoothing, z_loss, any(keep))
            d_logits = logits  # the gradient stands in their place now
            if keep[0]:
                d_states[first : first + rows] = product(d_logits, w.t())
            if keep[1]:
                d_weight = _add_product(d_weight, d_logits, h, exact)
            if keep[2]:
                d_bias += _column_sums(d_logits, exact)
    if d_weight is None:
        d_weight = weight.new_zeros(weight.shape if keep[1] else 0, dtype=exact)
    return total, d_states, d_weight.to(weight.dtype), d_bias.to(bias.dtype if bias is not None else weight.dtype)


def _add_product(total: Tensor | None, left: Tensor, right: Tensor, exact: torch.dtype) -> Tensor:
    """total + leftᵀ·right with a float32 sum over all tokens, whatever type the factors have.

    A CPU rounds the sum of a block of tokens in bfloat16 to it, as it does for every other layer's weights.
    """
    if left.is_cuda and left.dtype != exact:
        total = left.new_zeros(left.shape[1], right.shape[1], dtype=exact) if total is None else total
        return torch.addmm(total, left.T, right, out_dtype=exact)
    if left.device.type == "cpu" and left.dtype == torch.bfloat16:
        part = (left.T @ right).to(exact)
        return part if total is None else total.add_(part)
    left, right = left.T.to(exact), right.to(exact)
    return left @ right if total is None else total.addmm_(left, right)


def _column_sums(x: Tensor, exact: torch.dtype) -> Tensor:
    """Σ over the rows; of bfloat16 on a CPU by a product with ones, rounded like other products and three times as fast."""
    if x.device.type == "cpu" and x.dtype == torch.bfloat16:
        return (x.new_ones(1, x.shape[0]) @ x)[0].to(exact)
    return x.sum(0, dtype=exact)


def _loss(
    logits: Tensor,
    labels: Tensor,
    factor: Tensor | None,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    grad: bool,
) -> Tensor:
    """The sum of the tokens' losses; its gradient for the logits replaces them."""
    if logits.is_cuda and usable(logits):
        from tokenmix.ops.kernels.vocabulary import vocabulary_loss

        return vocabulary_loss(logits, labels, ignore_index, smoothing, z_loss, grad).sum()
    rows = len(logits) if logits.device.type != "cpu" else max(1, CACHED // logits.shape[1])
    parts = zip(logits.split(rows), labels.split(rows), strict=True)
    losses = [_rows(part, y, factor, ignore_index, smoothing, z_loss, grad) for part, y in parts]
    return torch.cat(losses).sum()


def _rows(
    logits: Tensor,
    labels: Tensor,
    factor: Tensor | None,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    grad: bool,
) -> Tensor:
    """Each token's loss; the gradient replaces the logits."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    real = labels != ignore_index
    y = torch.where(real, labels, 0).unsqueeze(1)
    highest = exact.amax(1, keepdim=True)
    wanted = (1 - smoothing) * exact.gather(1, y)
    if smoothing:
        wanted = wanted + smoothing * exact.mean(1, keepdim=True)
    p = torch.softmax(exact, 1, out=exact if exact.device.type == "cpu" else None)  # there in their place
    log_z = highest - p.amax(1, keepdim=True).log()  # max p = exp(0) / Σ exp(logits − highest)
    token = real.unsqueeze(1).to(p.dtype) if factor is None else real.unsqueeze(1) * factor.to(p.dtype)
    loss = torch.where(real.unsqueeze(1), token * (log_z - wanted + z_loss * log_z.square()), 0.0).squeeze(1)
    if grad:
        p.mul_(token * (1 + 2 * z_loss * log_z))
        if smoothing:
            p.sub_(token * (smoothing / logits.shape[1]))
        p.scatter_add_(1, y, token * (smoothing - 1))
        if p is not logits:
            logits.copy_(p)
    return loss


@linear_cross_entropy_op.register_fake
def _(states, weight, bias, labels, factor, ignore_index, label_smoothing, z_loss, keep):
    return (
        states.new_empty((), dtype=torch.promote_types(states.dtype, torch.float32)),
        torch.empty_like(states) if keep[0] else states.new_empty(0),
        weight.new_empty(weight.shape) if keep[1] else weight.new_empty(0),
        weight.new_empty(weight.shape[0] if keep[2] else 0, dtype=weight.dtype if bias is None else bias.dtype),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # no zeros for the gradients that ride along as outputs
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, g: Tensor | None, *more: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(t is not None for t in more):  # somebody differentiates the gradients that ride along
        raise RuntimeError(REFUSAL.format("tokenmix::linear_cross_entropy"))
    if g is None:
        return (None,) * 9
    plain = type(g) is Tensor and g.device.type == "cpu" and float(g) == 1  # as in loss.backward(): nothing to do
    # in float32: g may be 1 / count, and a rounded g would scale every gradient
    grads = [
        (t if plain else (t.to(g.dtype) * g).to(t.dtype)) if need else None
        for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad[:3], strict=True)
    ]
    return *grads, None, None, None, None, None, None


linear_cross_entropy_op.register_autograd(_backward, setup_context=_setup)
