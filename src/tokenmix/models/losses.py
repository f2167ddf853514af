"""Losses: cross-entropy with label smoothing and z-loss, classification and regression."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from tokenmix.devices import readable

IGNORED = -100


def check_labels(labels: Tensor, classes: int) -> None:
    """A clear error on the CPU; a GPU reports it by itself, later and less clearly."""
    if labels.device.type != "cpu" or not readable(labels) or type(labels) is not Tensor or not labels.numel():
        return
    wrong = labels[((labels < 0) & (labels != IGNORED)) | (labels >= classes)]
    if wrong.numel():
        raise ValueError(
            f"label {int(wrong[0])} is outside 0 … {classes - 1}, the classes of this model; {IGNORED} marks what does "
            f"not count"
        )


def token_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Mean over the labels that are not −100 of −log p(label), plus z_loss · log²Z  (T5's 1e-4 keeps logits small).

    `num_items_in_batch` replaces the count, so that accumulated micro-batches weigh as one batch.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().long()
    check_labels(labels, logits.shape[-1])
    real = labels != IGNORED
    total = cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="sum")
    if z_loss:
        total = total + z_loss * (torch.logsumexp(logits, -1).square() * real).sum()
    count = real.sum().clamp_min(1) if num_items_in_batch is None else num_items_in_batch
    return total / count


def classification_loss(logits: Tensor, labels: Tensor, kind: str, label_smoothing: float = 0.0) -> Tensor:
    """`kind` as in Hugging Face: "regression", "single_label_classification" (soft labels too) or "multi_label_…"."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if kind == "regression":
        return mse_loss(logits.squeeze(-1), labels.view_as(logits.squeeze(-1)).to(logits.dtype))
    if kind == "multi_label_classification":
        return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    if labels.is_floating_point():  # soft labels, as mixup makes them
        return cross_entropy(logits, labels.to(logits.dtype), label_smoothing=label_smoothing)
    labels = labels.long().view(-1)
    check_labels(labels, logits.shape[-1])
    return cross_entropy(logits, labels, label_smoothing=label_smoothing)
