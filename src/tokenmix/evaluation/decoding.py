"""The one place where evaluation and prediction generate text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix import generation


@torch.no_grad()
def generate(model: Any, input_ids: Tensor, attention_mask: Tensor, *, max_new_tokens: int, **options: Any) -> Tensor:
    """Token ids that the model answers with, [batch, length]; neither prompt nor start token is among them.

    ``options``: num_beams, length_penalty, do_sample, temperature, top_k, top_p, generator.
    """
    return generation.generate(model, input_ids, attention_mask, max_new_tokens=max_new_tokens, **options).tokens
