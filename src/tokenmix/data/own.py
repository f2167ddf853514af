"""One's own files as a task: `file:train.jsonl?input=question&target=answer`.

What follows the `?`:

    input=COLUMN&target=COLUMN     text-to-text; `input` may be left out (then the input is empty)
    text=COLUMN&label=COLUMN       classification (`text=COLUMN,COLUMN` for pairs); labels: those in the training file
    text=COLUMN                    documents for language models; a .txt file needs no options: one document a line
    validation=FILE&test=FILE      further splits, next to the training file
    metric=exact_match             for text-to-text: exact_match, accuracy, bleu, rouge, squad
    name=NAME                      what reports call it

.jsonl, .csv and .tsv (both with a header line) and .txt are read, plain, .gz or .xz.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tokenmix.data.labelled import ACCURACY
from tokenmix.data.readers import Row, by_suffix
from tokenmix.data.sources import Files
from tokenmix.data.task import Example, Task
from tokenmix.evaluation import metrics
from tokenmix.naming import unknown

OPTIONS = ("input", "target", "text", "label", "train", "validation", "test", "metric", "name")


def _text(row: Row, column: str) -> str:
    """A field as text; null is none."""
    if row[column] is None:
        raise ValueError(f"{row.where}: field {column!r} is null; expected text: fill it in, or leave that record out")
    return str(row[column])


def _targets(examples: Sequence[Example]) -> list[str]:
    return [example.target for example in examples]


METRICS: Mapping[str, tuple[str, Callable[[Any, Any], dict[str, float]]]] = {
    "exact_match": ("exact_match", lambda p, e: {"exact_match": metrics.exact_match(p, _targets(e))}),
    "accuracy": ("accuracy", lambda p, e: {"accuracy": metrics.accuracy(p, _targets(e))}),
    "bleu": ("bleu", lambda p, e: {"bleu": metrics.bleu(p, [[t] for t in _targets(e)])}),
    "rouge": ("rougeL", lambda p, e: metrics.rouge(p, [[t] for t in _targets(e)])),
    "squad": ("f1", lambda p, e: metrics.squad(p, [[t] for t in _targets(e)])),
}


def file_task(spec: str) -> Task:
    """The task of a `file:` specification.

    >>> file_task("file:train.jsonl?input=question&target=answer").forms
    ('text',)
    """
    path, _, query = spec.removeprefix("file:").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    for option in options:
        if option not in OPTIONS:
            raise unknown(f"option in {spec!r}", option, OPTIONS)
    if not path:
        raise ValueError(f"{spec!r} names no file; expected e.g. file:train.jsonl?input=question&target=answer")
    file = Path(path).expanduser()
    splits = {"train": file.name} | {s: options[s] for s in ("validation", "test") if s in options}
    source = Files(str(file.parent.resolve()), splits)
    name, url = options.get("name", spec), f"the path {path!r}"
    evaluated = next((split for split in ("validation", "test") if split in splits), "train")
    common: dict[str, Any] = {"default_split": evaluated, "url": url}
    if "label" in options:
        return _labelled(name, source, options, common)
    if "target" in options:
        return _text_to_text(name, source, options, common)
    column = options.get("text", "text")
    convert = {"document": lambda row, split: Example(target=_text(row, column))}
    return Task(name, "own", (source,), convert, metrics.score_documents, "perplexity", **common)


def _text_to_text(name: str, source: Files, options: dict[str, str], common: dict[str, Any]) -> Task:
    metric = options.get("metric", "exact_match")
    if metric not in METRICS:
        raise unknown("metric for one's own files", metric, METRICS)
    source_column, target_column = options.get("input"), options["target"]

    def convert(row: Row, split: str) -> Example:
        return Example(input=_text(row, source_column) if source_column else "", target=_text(row, target_column))

    headline, score = METRICS[metric]
    return Task(name, "own", (source,), {"text": convert}, score, headline, **common)


def _labelled(name: str, source: Files, options: dict[str, str], common: dict[str, Any]) -> Task:
    if "text" not in options:
        raise ValueError(f"{name!r} has label= without text=; expected e.g. file:reviews.csv?text=review&label=stars")
    columns, column = options["text"].split(","), options["label"]
    path = Path(source.folder) / str(source.splits["train"])
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {name!r} reads its label names from there")
    labels = tuple(sorted({_text(row, column) for row in by_suffix(path)}))
    if len(labels) < 2:
        found = f"holds {labels[0]!r} alone" if labels else "has no rows"
        raise ValueError(f"{path} {found}; to classify, its column {column!r} needs at least two labels")

    def convert(form: str) -> Callable[[Row, str], Example]:
        def to_example(row: Row, split: str) -> Example:
            label = _text(row, column)
            if label not in labels:
                raise ValueError(f"expected a label out of {', '.join(labels)}, found {row[column]!r}")
            index, texts = labels.index(label), tuple(_text(row, c) for c in columns)
            if form == "classify":
                return Example(texts=texts, label=index)
            text = " ".join(f"{name}: {text}" for name, text in zip(columns, texts, strict=True))
            return Example(input=text, target=labels[index], label=index)

        return to_example

    forms = {form: convert(form) for form in ("classify", "text")}
    return Task(name, "own", (source,), forms, ACCURACY, "accuracy", labels=labels, **common)
