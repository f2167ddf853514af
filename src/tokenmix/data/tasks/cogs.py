"""COGS (Kim & Linzen 2020): sentences to logical forms, with 21 kinds of generalisation. Whole-string exact match."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmix.data.readers import Row, tsv
from tokenmix.data.sources import Files
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics


def _convert(row: Row, split: str) -> Example:
    return Example(input=row["sentence"], target=row["logical_form"], meta={"category": row["category"]})


def _score(predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    truth, categories = [e.target for e in examples], [e.meta["category"] for e in examples]
    if len(set(categories)) == 1:
        return {"exact_match": metrics.exact_match(predictions, truth)}
    return metrics.exact_match_by_category(predictions, truth, categories)


register(
    Task(
        "cogs",
        "compositional",
        (
            Files(
                "cogs",
                {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv", "gen": "gen.tsv"},
                read=tsv(("sentence", "logical_form", "category")),
            ),
        ),
        {"text": _convert},
        _score,
        "exact_match",
        default_split="gen",
        url="https://github.com/najoungkim/COGS (folder data)",
    )
)
