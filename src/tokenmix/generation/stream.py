"""`stream`: tokens, or text, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tokenmix.generation.api import evaluating, prepare
from tokenmix.generation.engine import steps


def stream(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    tokenizer: Any = None,
    **options: Any,
) -> Iterator[Any]:
    """The same one token at a time, greedy or sampled: yields ids [batch] as they are chosen.

    With a `tokenizer` and one row, yields pieces of text instead: what the new token adds, held back while it is only
    part of a character. Takes the options of :func:`generate`, beams aside.

    >>> for piece in stream(model, ids, max_new_tokens=64, tokenizer=tokenizer):
    ...     print(piece, end="", flush=True)
    """
    if options.get("num_beams", 1) != 1:
        raise ValueError("beam search knows its best hypothesis only at the end; stream with num_beams=1")
    if options.pop("return_scores", False):
        raise ValueError("stream yields tokens, not scores; use generate(return_scores=True)")
    text = tokenizer is not None and input_ids.shape[0] == 1
    shown = ""
    with evaluating(model):
        session, search, _ = prepare(model, input_ids, attention_mask, tokenizer=tokenizer, scored=False, **options)
    if session is None:
        return
    states = steps(session, ask=True)
    try:
        while True:
            with evaluating(model):
                if next(states, None) is None:
                    break
            if not text:
                latest = torch.full_like(search.sequences[:, 0], search.limits.pad)
                latest[search.rows] = search.tokens
                yield latest
                continue
            whole = tokenizer.decode(search.sequences[0, : search.chosen], skip_special_tokens=True)
            if whole.startswith(shown) and not whole.endswith("\N{REPLACEMENT CHARACTER}"):
                if len(whole) > len(shown):
                    yield whole[len(shown) :]
                shown = whole
    finally:
        session.rest()
