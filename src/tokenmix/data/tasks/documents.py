"""Document classification: AG News (Zhang et al. 2015) and IMDb reviews (Maas et al. 2011)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenmix.data.labelled import labelled_task
from tokenmix.data.readers import Row, csv_rows
from tokenmix.data.sources import Files, Hub
from tokenmix.data.task import register

TOPICS = ("World", "Sports", "Business", "Sci/Tech")


def _ag_news(row: Row) -> Iterable[Row]:
    """Classes are written 1 to 4; title and description make one text (some releases have one text field only)."""
    number = row["class"]
    if number not in ("1", "2", "3", "4"):
        raise ValueError(f"expected a class from 1 to 4, found {number!r}")
    text = " ".join(filter(None, (row["title"], row.get("description", ""))))
    return (row.derive(text=text, label=TOPICS[int(number) - 1]),)


_READ = csv_rows(("class", "title", "description"), optional=1)
register(
    labelled_task(
        "ag_news",
        "documents",
        (
            Files("ag_news", {"train": "train.csv", "test": "test.csv"}, read=_READ, adapt=_ag_news),
            Files(
                "ag_news",
                {"train": "train_subset.csv"},
                read=_READ,
                adapt=_ag_news,
                note="AG News: a 12% subset of the training set; test complete",
            ),
            Hub("fancyzhx/ag_news", splits={"train": "train", "test": "test"}),
        ),
        ("text",),
        TOPICS,
        default_split="test",
        url="https://github.com/mhjabreel/CharCnn_Keras (folder data/ag_news_csv)",
    )
)


def _reviews(folder: Path) -> Iterator[Row]:
    """The official layout: `pos/0_9.txt`, one review a file."""
    for name in ("neg", "pos"):
        for path in sorted((folder / name).glob("*.txt")):
            yield Row({"text": path.read_text("utf-8"), "label": name}, path, 1)


def _imdb_text(row: Row) -> Iterable[Row]:
    return (row.derive(text=row["text"].replace("<br />", " "), label=row["label"]),)


register(
    labelled_task(
        "imdb",
        "documents",
        (
            Files("imdb", {"train": "train.jsonl", "test": "test.jsonl"}, adapt=_imdb_text),
            Files("aclImdb", {"train": "train", "test": "test"}, read=_reviews, adapt=_imdb_text),
            Hub("stanfordnlp/imdb", splits={"train": "train", "test": "test"}, adapt=_imdb_text),
        ),
        ("text",),
        ("negative", "positive"),
        aliases={"neg": "negative", "pos": "positive"},
        default_split="test",
        shuffle=True,  # every source is ordered by class
        url="https://ai.stanford.edu/~amaas/data/sentiment",
    )
)
