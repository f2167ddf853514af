"""Text for pretraining: C4, RealNews, Wikipedia, LM1B; any other: `file:corpus.txt`. Read it with `task.stream`."""

from __future__ import annotations

from tokenmix.data.readers import Row, documents, jsonl, lines
from tokenmix.data.sources import Files, Hub, Source
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics


def _document(row: Row, split: str) -> Example:
    return Example(target=row["text"])


def _corpus(name: str, url: str, *sources: Source) -> None:
    register(
        Task(name, "pretraining", sources, {"document": _document}, metrics.score_documents, "perplexity", url=url)
    )


for _name, _config in (("c4", "en"), ("realnews", "realnewslike")):
    _corpus(
        _name,
        "https://huggingface.co/datasets/allenai/c4",
        Files(f"c4/{_config}", {"train": "c4-train.*.json", "validation": "c4-validation.*.json"}, read=jsonl),
        Hub("allenai/c4", _config, splits={"train": "train", "validation": "validation"}, streaming=True),
    )

_corpus(
    "wikipedia",
    "https://dumps.wikimedia.org",
    Files(
        "wikipedia_en",
        {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"},
        read=documents,
        note="Wikipedia: a 30-million-word slice of 2014",
    ),
    Hub("wikimedia/wikipedia", "20231101.en", splits={"train": "train"}, streaming=True),
)

_LM1B = "1-billion-word-language-modeling-benchmark-r13output"
_HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-000"
_corpus(
    "lm1b",
    "https://www.statmt.org/lm-benchmark",
    Files(
        _LM1B,
        {
            "train": "training-monolingual.tokenized.shuffled/news.en-*-of-00100",
            "test": f"{_HELD_OUT}00-of-00050",  # the usual test set is the first of the fifty held-out parts
            "validation": f"{_HELD_OUT}01-of-00050",
        },
        read=lines,
    ),
    Hub("dvruette/lm1b", splits={"train": "train", "test": "test"}, streaming=True),
)
