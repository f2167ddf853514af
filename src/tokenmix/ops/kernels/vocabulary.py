"""One token's loss over the vocabulary and its gradient, in place of its logits; see `ops/cross_entropy.py`."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _vocabulary_loss(
    logits, labels, loss, stride, vocabulary, ignore_index, smoothing, z_loss,
    GRAD: tl.constexpr, SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Two passes over a row: log Z, then p (1 + 2 z log Z) − (1 − ε) onehot(y) − ε/V."""
    token = tl.program_id(0).to(tl.int64)
    row = logits + token * stride
    y = tl.load(labels + token)
    v = tl.arange(0, BLOCK)
    if y == ignore_index:
        tl.store(loss + token, 0.0)
        if GRAD:
            for first in range(0, vocabulary, BLOCK):
                tl.store(row + first + v, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=first + v < vocabulary)
        return
    top = tl.full((), -1.0e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        inside = first + v < vocabulary
        t = tl.load(row + first + v, mask=inside, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)
        higher = tl.maximum(top, tl.max(t, 0))
        total = total * tl.exp(top - higher) + tl.exp(t - higher)
        if SMOOTH:
            plain += tl.where(inside, t, 0.0)
        top = higher
    log_z = top + tl.log(tl.sum(total, 0))
    right = tl.load(row + y).to(tl.float32)
    mean = tl.sum(plain, 0) / vocabulary
    tl.store(loss + token, log_z - (1 - smoothing) * right - smoothing * mean + z_loss * log_z * log_z)
    if GRAD:
        tl.debug_barrier()  # the label's logit is read before it is overwritten
        factor = 1 + 2 * z_loss * log_z
        for first in range(0, vocabulary, BLOCK):
            inside = first + v < vocabulary
            t = tl.load(row + first + v, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            p = tl.exp(t - log_z) * factor - smoothing / vocabulary
            p = tl.where(first + v == y, p - (1 - smoothing), p)
            tl.store(row + first + v, p.to(logits.dtype.element_ty), mask=inside)


def vocabulary_loss(
    logits: Tensor, labels: Tensor, ignore_index: int, smoothing: float, z_loss: float, grad: bool
) -> Tensor:
    """Each token's loss in float32; with `grad`, logits [tokens, vocabulary] become the gradient of their sum."""
    tokens, vocabulary = logits.shape
    loss = logits.new_empty(tokens, dtype=torch.float32)
    block = min(8192, triton.next_power_of_2(vocabulary))
    _vocabulary_loss[(tokens,)](
        logits, labels, loss, logits.stride(0), vocabulary, ignore_index, smoothing, z_loss,
        GRAD=grad, SMOOTH=smoothing > 0, BLOCK=block, num_warps=8,
    )  # fmt: skip
    return loss
