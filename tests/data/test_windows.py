"""Sliding windows over long contexts, and the answers put together again."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tokenmix.data.task import Example
from tokenmix.data.windows import best_answers, make_windows

WORDS = [f"w{i}" for i in range(60)]
CONTEXT = " ".join(WORDS)
ANSWER = "w30 w31"
LONG = Example(question="where is it", context=CONTEXT, answers=(ANSWER,), start=CONTEXT.index(ANSWER))
NONE = Example(question="where", context="w1 w2 w3")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "where", "is", "it", *WORDS])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def test_windows_cover_the_context_and_mark_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    windows = make_windows([LONG, NONE], tokenizer, max_length=20, overlap=5)
    mine = [w for w in windows if w.example == 0]
    assert all(len(w.input_ids) <= 20 and len(w.token_type_ids) == len(w.offsets) == len(w.input_ids) for w in windows)
    covered = {span for w in mine for span in w.offsets if span}
    assert len(covered) == 60
    first, second = ({s for s in w.offsets if s} for w in mine[:2])
    assert len(first & second) == 5
    holding = [w for w in mine if w.end]
    assert holding, "some window holds the whole answer"
    for window in holding:
        begin, end = window.offsets[window.start], window.offsets[window.end]
        assert CONTEXT[begin[0] : end[1]] == ANSWER
    assert [(w.start, w.end) for w in windows if w.example == 1] == [(0, 0)]


def test_best_answer_comes_from_any_window(tokenizer: PreTrainedTokenizerFast) -> None:
    windows = make_windows([LONG, NONE], tokenizer, max_length=20, overlap=5)
    starts = [np.zeros(20) for _ in windows]
    ends = [np.zeros(20) for _ in windows]
    for window, start, end in zip(windows, starts, ends, strict=True):
        if window.end:
            start[window.start] = end[window.end] = 5.0
            end[window.start - 1] = 9.0  # an end before its start counts for nothing
        elif window.example == 1:
            start[0] = end[0] = 3.0
    answers = best_answers(windows, starts, ends, [LONG, NONE], null_threshold=0.0)
    assert (answers[0].text, answers[0].score) == (ANSWER, 10.0)
    assert len(answers[0].best) == 20
    assert answers[0].best[0] == (ANSWER, 10.0)
    assert (answers[1].text, answers[1].null_score) == ("", 6.0)
    assert best_answers(windows, starts, ends, [LONG, NONE])[1].text != "", (
        "without a threshold there is always an answer"
    )


def test_answers_are_short_and_inside_the_context(tokenizer: PreTrainedTokenizerFast) -> None:
    windows = make_windows([LONG], tokenizer, max_length=80, overlap=5)
    start, end = np.zeros(len(windows[0].input_ids)), np.zeros(len(windows[0].input_ids))
    start[1] = 50.0  # a word of the question
    start[6] = end[60] = 5.0
    answer = best_answers(windows, [start], [end], [LONG], max_answer=3)[0]
    assert len(answer.text.split()) <= 3
    assert answer.score == 5.0


def test_long_questions_are_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    example = Example(question=" ".join(["where"] * 50), context=CONTEXT)
    windows = make_windows([example], tokenizer, max_length=30, overlap=4, max_question=6)
    assert windows[0].input_ids[:8] == [1, *[4] * 6, 2]


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="no fast tokenizer"):
        make_windows([LONG], object())
