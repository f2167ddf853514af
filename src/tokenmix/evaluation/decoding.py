"""The one place where evaluation and prediction generate text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def generate(model: Any, input_ids: Tensor, attention_mask: Tensor, *, max_new_tokens: int, num_beams: int = 1, **options: Any) -> Tensor:
    """Token ids that the model answers with, [batch, length]; a decoder's prompt is not among them.

    ``options``: length_penalty, do_sample, temperature, top_k, top_p.
    """
    sequences = model.generate(
        input_ids=input_ids,
        attention_mask=attention_mask,
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        do_sample=options.pop("do_sample", False),
        **options,
    )
    return sequences if model.config.body == "seq2seq" else sequences[:, input_ids.shape[1] :]
