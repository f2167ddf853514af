"""SQuAD v1.1 and v2.0: text-to-text, and span prediction (`tokenmix.data.windows` cuts long contexts)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenmix.data.readers import Row, json_document
from tokenmix.data.sources import Files, Hub, Source
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics

UNANSWERABLE = "unanswerable"  # what a text-to-text model says where v2.0 has no answer


def _official(path: Path) -> Iterator[Row]:
    """train-v1.1.json and its like: articles, paragraphs, questions; as rows with the Hub's field names."""
    content = json_document(path)
    if not isinstance(content, dict) or "data" not in content:
        raise ValueError(f'{path}, line 1: expected SQuAD\'s {{"data": [articles]}}')
    number = 0
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                number += 1
                answers = question.get("answers", [])
                fields = {"text": [a["text"] for a in answers], "answer_start": [a["answer_start"] for a in answers]}
                row = {"id": question["id"], "context": paragraph["context"], "question": question["question"]}
                yield Row({**row, "answers": fields}, f"{path}, question {number}", 1)


def _answers(row: Row) -> tuple[tuple[str, ...], int]:
    """(answers, start of the first); the answer must stand in the context where the file says."""
    answers = row["answers"]
    texts, starts = tuple(answers["text"]), answers["answer_start"]
    if not texts:
        return (), -1
    found = row["context"][starts[0] : starts[0] + len(texts[0])]
    if found != texts[0]:
        raise ValueError(f"expected the answer {texts[0]!r} at character {starts[0]} of the context, found {found!r}")
    return texts, int(starts[0])


def _text(row: Row, split: str) -> Example:
    texts, _ = _answers(row)
    return Example(
        input=f"question: {row['question'].strip()} context: {row['context'].strip()}",
        target=texts[0] if texts else UNANSWERABLE,
        answers=texts,
    )


def _span(row: Row, split: str) -> Example:
    texts, start = _answers(row)
    return Example(question=row["question"].strip(), context=row["context"], answers=texts, start=start)


def _decode(text: str, example: Example) -> str:
    return "" if text.strip() == UNANSWERABLE else text.strip()


def _score(predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    """F1 and exact match; where some questions have no answer, also for both kinds apart."""
    truth = [example.answers for example in examples]
    result = metrics.squad(predictions, truth)
    for name, wanted in (("has_answer", True), ("no_answer", False)):
        chosen = [(p, t) for p, t in zip(predictions, truth, strict=True) if bool(t) == wanted]
        if 0 < len(chosen) < len(truth):
            part = metrics.squad([p for p, _ in chosen], [t for _, t in chosen])
            result |= {f"{name}_{key}": value for key, value in part.items()}
    return result


def _squad(name: str, version: str, hub: str, *more: Files) -> None:
    official: dict[str, Any] = {"train": f"train-{version}.json", "validation": f"dev-{version}.json"}
    sources: tuple[Source, ...] = (
        Files("squad", official, read=_official),
        *more,
        Hub(hub, splits={"train": "train", "validation": "validation"}),
    )
    convert = {"text": _text, "span": _span}
    url = "https://rajpurkar.github.io/SQuAD-explorer"
    register(Task(name, "questions", sources, convert, _score, "f1", decode=_decode, url=url))


_squad(
    "squad",
    "v1.1",
    "rajpurkar/squad",
    Files(
        "squad_subset",
        {"train": "train_subset.jsonl", "validation": "eval_xquad_en.jsonl"},
        note="SQuAD: a 10% subset of the training set, evaluated on XQuAD's English questions",
    ),
)
_squad("squad_v2", "v2.0", "rajpurkar/squad_v2")
