"""Generation for a whole data set: examples of like length together, progress shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from tokenmix.generation.api import generate


def generate_many(
    model: Any, prompts: Sequence[Sequence[int]], *, batch_size: int = 64, progress: bool = True, **options: Any
) -> list[list[int]]:
    """The new tokens for each prompt, in the order given, without padding; `options` are those of :func:`generate`.

    Batches are made of prompts of like length, the longest first, so that little is padded and what does not fit in
    memory fails at once.

    >>> outputs = generate_many(model, tokenizer(texts).input_ids, max_new_tokens=64, num_beams=4, length_penalty=0.6)
    >>> tokenizer.batch_decode(outputs, skip_special_tokens=True)
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be a whole number >= 1; got {batch_size!r}")
    if options.pop("return_scores", False):
        raise ValueError("generate_many gives tokens alone; for scores call generate")
    device = next(model.parameters()).device
    pad = model.config.pad_token_id or 0
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    outputs: list[list[int]] = [[] for _ in prompts]
    with tqdm(total=len(prompts), disable=not progress, unit="example", desc="generating") as bar:
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            longest = len(prompts[chosen[0]])
            ids = torch.full((len(chosen), longest), pad)
            mask = torch.zeros(len(chosen), longest, dtype=torch.bool)
            for row, i in enumerate(chosen):
                ids[row, : len(prompts[i])] = torch.tensor(prompts[i])
                mask[row, : len(prompts[i])] = True
            out = generate(model, ids.to(device), mask.to(device), **options)
            for i, tokens, length in zip(chosen, out.tokens.tolist(), out.lengths.tolist(), strict=True):
                outputs[i] = tokens[:length]
            bar.update(len(chosen))
    return outputs
