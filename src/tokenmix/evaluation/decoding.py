"""The one place where evaluation and prediction generate text."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tokenmix import generation


def search_options(beams: int, length_penalty: float | None) -> dict[str, Any]:
    """The options of `generate` for beam search; none for one beam.

    >>> search_options(4, 0.6)
    {'num_beams': 4, 'length_penalty': 0.6}
    """
    if length_penalty is not None and not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty must be a finite number; got {length_penalty}")
    if beams == 1 and length_penalty is not None:
        raise ValueError(f"length_penalty={length_penalty} ranks beams, and there is one; take 2 beams or more")
    return (
        {"num_beams": beams, "length_penalty": 1.0 if length_penalty is None else length_penalty} if beams > 1 else {}
    )


@torch.no_grad()
def generate(model: Any, input_ids: Tensor, attention_mask: Tensor, *, max_new_tokens: int, **options: Any) -> Tensor:
    """Token ids that the model answers with, [batch, length]; neither prompt nor start token is among them.

    ``options``: num_beams, length_penalty, do_sample, temperature, top_k, top_p, generator.
    """
    return generation.generate(model, input_ids, attention_mask, max_new_tokens=max_new_tokens, **options).tokens
