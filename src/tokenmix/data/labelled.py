"""Tasks whose answer is one of a few labels: GLUE, SuperGLUE, entailment and documents are written with this.

>>> label_index("neutral", ("entailment", "neutral"))
1
>>> label_index(-1, ("entailment", "neutral")) is None      # a test set that hides its labels
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmix.data.readers import Row
from tokenmix.data.sources import Source
from tokenmix.data.task import Example, Score, Task
from tokenmix.evaluation import metrics


def label_index(value: Any, labels: Sequence[str], aliases: Mapping[str, str] | None = None) -> int | None:
    """A label as files and the Hub write it (name, index, bool, digit) as an index; None where it is hidden."""
    value = (aliases or {}).get(value, value) if isinstance(value, str) else value
    if value is None or value in (-1, "-1"):
        return None
    if isinstance(value, str) and value in labels:
        return list(labels).index(value)
    if isinstance(value, (bool, int)) or (isinstance(value, str) and value.isdigit()):
        index = int(value)
        if 0 <= index < len(labels):
            return index
    raise ValueError(f"expected a label out of {', '.join(labels)} (or its number from 0), found {value!r}")


def golden(examples: Sequence[Example]) -> list[Any]:
    """The true labels; an error where they are hidden."""
    if any(example.label is None for example in examples):
        raise ValueError("these examples carry no labels (a hidden test set?); evaluate on validation")
    return [example.label for example in examples]


def on_labels(**named: Callable[[Sequence[Any], Sequence[Any]], float]) -> Score:
    """A score out of metrics of (predicted labels, true labels).

    >>> on_labels(accuracy=metrics.accuracy)([1, 0], [Example(label=1), Example(label=1)])
    {'accuracy': 50.0}
    """

    def score(predictions: Sequence[Any], examples: Sequence[Example]) -> dict[str, float]:
        truth = golden(examples)
        return {name: metric(predictions, truth) for name, metric in named.items()}

    return score


ACCURACY = on_labels(accuracy=metrics.accuracy)


def prompt(prefix: str, **fields: str) -> str:
    """T5's text form of a record: `prefix name: value name: value …`.

    >>> prompt("rte", hypothesis="b", premise="a")
    'rte hypothesis: b premise: a'
    """
    return " ".join([prefix, *(f"{name}: {value}" for name, value in fields.items())])


def labelled_task(
    name: str,
    family: str,
    sources: tuple[Source, ...],
    fields: Sequence[str],
    labels: Sequence[str],
    *,
    prefix: str | None = None,
    texts: Sequence[str] | Callable[[Row], tuple[str, ...]] | None = None,
    aliases: Mapping[str, str] | None = None,
    score: Score = ACCURACY,
    metric: str = "accuracy",
    meta: Callable[[Row], dict[str, Any]] = lambda row: {},
    clean: Callable[[str], str] = str,
    **options: Any,
) -> Task:
    """A classification task: `fields` make the text form, in that order, `texts` (or the same) the classify form."""
    pair = texts or fields

    def label(row: Row) -> int | None:
        return label_index(row.get("label"), labels, aliases)

    def as_text(row: Row, split: str) -> Example:
        index = label(row)
        text = clean(prompt(prefix or name, **{field: row[field] for field in fields}))
        return Example(input=text, target="" if index is None else labels[index], label=index, meta=meta(row))

    def as_classes(row: Row, split: str) -> Example:
        parts = pair(row) if callable(pair) else tuple(row[field] for field in pair)
        return Example(texts=tuple(clean(part) for part in parts), label=label(row), meta=meta(row))

    convert = {"text": as_text, "classify": as_classes}
    return Task(name, family, sources, convert, score, metric, labels=tuple(labels), **options)
