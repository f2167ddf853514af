"""Span answers from contexts longer than the model: cut into overlapping windows, and put the answers together again.

windows = make_windows(examples, tokenizer, max_length=384, overlap=128)
…                                  # the model gives start and end logits for every window
answers = best_answers(windows, starts, ends, examples)
task.evaluate([answer.text for answer in answers], examples)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmix.data.task import Example


@dataclass(frozen=True, slots=True)
class Window:
    """A question with a piece of its context. `offsets`: each token's characters in the context, None for other tokens.

    `start` and `end` are the answer's first and last token, both 0 where this window does not hold the whole answer.
    """

    example: int
    input_ids: list[int]
    token_type_ids: list[int]
    offsets: list[tuple[int, int] | None]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The best answer, its score (sum of logits), the best few, and the score of "no answer"."""

    text: str
    score: float
    best: tuple[tuple[str, float], ...]
    null_score: float


def make_windows(
    examples: Sequence[Example], tokenizer: Any, max_length: int = 384, overlap: int = 128, max_question: int = 64
) -> list[Window]:
    """Windows of at most `max_length` tokens over each example's context; neighbours share `overlap` tokens.

    `tokenizer` is a fast Hugging Face tokenizer. A question longer than `max_question` tokens is cut, as for BERT.
    """
    if not getattr(tokenizer, "is_fast", False):
        kind = type(tokenizer).__name__
        raise ValueError(f"{kind} is no fast tokenizer; windows need character offsets: use one with a tokenizer.json")
    windows = []
    for index, example in enumerate(examples):
        encoded = tokenizer(
            _shortened(example.question, tokenizer, max_question),
            example.context,
            truncation="only_second",
            max_length=max_length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        for piece, ids in enumerate(encoded["input_ids"]):
            belongs = encoded.sequence_ids(piece)
            spans = encoded["offset_mapping"][piece]
            offsets = [tuple(span) if of == 1 else None for span, of in zip(spans, belongs, strict=True)]
            types = encoded["token_type_ids"][piece]
            windows.append(Window(index, ids, types, offsets, *_answer_tokens(example, offsets)))
    return windows


def _shortened(question: str, tokenizer: Any, limit: int) -> str:
    spans = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return question if len(spans) <= limit else question[: spans[limit - 1][1]]


def _answer_tokens(example: Example, offsets: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    inside = [(token, span) for token, span in enumerate(offsets) if span and span[1] > span[0]]
    if example.start < 0 or not inside:
        return 0, 0
    first, last = example.start, example.start + len(example.answers[0])
    if inside[0][1][0] > first or inside[-1][1][1] < last:
        return 0, 0
    touching = [token for token, (begin, end) in inside if end > first and begin < last]
    return (touching[0], touching[-1]) if touching else (0, 0)


def best_answers(
    windows: Sequence[Window],
    starts: Sequence[Sequence[float]],
    ends: Sequence[Sequence[float]],
    examples: Sequence[Example],
    n_best: int = 20,
    max_answer: int = 30,
    null_threshold: float | None = None,
) -> list[Answer]:
    """The answer to each example out of all its windows.

    A span scores start logit + end logit; it lies inside the context and has at most `max_answer` tokens.
    `null_threshold` (SQuAD v2.0): the answer is "" where "no answer" (the first token, at its lowest over the windows)
    beats it by more.
    """
    spans: list[dict[tuple[int, int], float]] = [{} for _ in examples]
    null = [float("inf")] * len(examples)
    for window, start_logits, end_logits in zip(windows, starts, ends, strict=True):
        length = len(window.input_ids)
        start, end = (np.asarray(x, dtype=np.float64)[:length] for x in (start_logits, end_logits))
        null[window.example] = min(null[window.example], float(start[0] + end[0]))
        context = np.array([span is not None for span in window.offsets])
        scores = start[:, None] + end[None, :]
        distance = np.arange(length)[None, :] - np.arange(length)[:, None]
        scores[~(context[:, None] & context[None, :] & (distance >= 0) & (distance < max_answer))] = -np.inf
        best = np.argpartition(scores, max(scores.size - n_best, 0), axis=None)[-n_best:]
        for first, last in zip(*np.unravel_index(best, scores.shape), strict=True):
            if np.isfinite(scores[first, last]):
                key = (window.offsets[first][0], window.offsets[last][1])
                found = spans[window.example]
                found[key] = max(found.get(key, -np.inf), float(scores[first, last]))
    return [
        _choose(example.context, found, lowest, n_best, null_threshold)
        for example, found, lowest in zip(examples, spans, null, strict=True)
    ]


def _choose(
    context: str, spans: dict[tuple[int, int], float], null: float, n_best: int, threshold: float | None
) -> Answer:
    ranked = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[:n_best]
    best = tuple((context[first:last].strip(), score) for (first, last), score in ranked)
    text, score = best[0] if best else ("", null)
    if threshold is not None and null - score > threshold:
        text, score = "", null
    return Answer(text, score, best, null)
