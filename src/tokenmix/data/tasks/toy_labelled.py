"""Small generated tasks in every form that pretraining's `toy` does not have: labels, pairs, answers, images.

For demonstrations and tests of finetuning with nothing to download. `toy_pairs` needs what `toy_sentiment` does not: to
compare two sentences.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tokenmix.data.labelled import ACCURACY
from tokenmix.data.sources import Made
from tokenmix.data.task import Example, Task, register
from tokenmix.data.tasks.toy import COLOURS, PEOPLE, PLACES, THINGS
from tokenmix.evaluation import metrics

SIZES = {"train": 1000, "validation": 200}
GOOD, BAD = ("liked", "loved", "enjoyed", "praised"), ("hated", "disliked", "feared", "blamed")
LABELS = ("entailment", "neutral", "contradiction")
SIDE = 28  # pixels


def _sentiment(rng: random.Random) -> dict[str, Any]:
    label = rng.randrange(2)
    verb = rng.choice(GOOD if label else BAD)
    return {"text": f"{rng.choice(PEOPLE)} {verb} the {rng.choice(COLOURS)} {rng.choice(THINGS)}.", "label": label}


def _pair(rng: random.Random) -> dict[str, Any]:
    label = rng.randrange(3)
    person, thing, (place, other) = rng.choice(PEOPLE), rng.choice(THINGS), rng.sample(PLACES, 2)
    claims = (f"The {thing} is in the {place}.", f"{person} likes the {thing}.", f"The {thing} is in the {other}.")
    return {"text": f"{person} left the {thing} in the {place}.", "pair": claims[label], "label": label}


def _question(rng: random.Random) -> dict[str, Any]:
    (first, second), (here, there) = rng.sample(THINGS, 2), rng.sample(PLACES, 2)
    context = f"The {first} is in the {here}. The {second} is in the {there}."
    asked, answer = rng.choice(((first, here), (second, there)))
    return {"question": f"Where is the {asked}?", "text": context, "answer": answer}


def _image(rng: random.Random) -> dict[str, Any]:
    """A bright bar: horizontal, vertical, or along either diagonal, somewhere on noise."""
    label, at = rng.randrange(4), rng.randrange(8, SIDE - 8)
    pixels = np.array([rng.randrange(60) for _ in range(SIDE * SIDE)], dtype=np.uint8).reshape(SIDE, SIDE)
    rows, columns = np.indices((SIDE, SIDE))
    line = (rows - at, columns - at, rows - columns + at - SIDE // 2, rows + columns - SIDE - at + SIDE // 2)[label]
    pixels[np.abs(line) <= 1] = 220
    return {"image": pixels, "label": label}


def _rows(name: str, make: Callable[[random.Random], dict[str, Any]], split: str) -> Iterator[dict[str, Any]]:
    return (make(random.Random(f"{name} {split} {number}")) for number in range(SIZES[split]))


def _source(name: str, make: Callable[[random.Random], dict[str, Any]]) -> tuple[Made]:
    return (Made({split: functools.partial(_rows, name, make, split) for split in SIZES}),)


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row["text"], row["pair"]) if "pair" in row else (row["text"],)


def _register(name: str, make: Callable[[random.Random], dict[str, Any]], labels: tuple[str, ...]) -> None:
    convert = {
        "text": lambda row, split: Example(
            input=" ".join(_texts(row)), target=labels[row["label"]], label=row["label"], texts=_texts(row)
        ),
        "classify": lambda row, split: Example(texts=_texts(row), label=row["label"]),
    }
    register(Task(name, "toy", _source(name, make), convert, ACCURACY, "accuracy", labels=labels))


def _answer(form: str, row: Mapping[str, Any], split: str) -> Example:
    answers = (row["answer"],)
    if form == "text":
        return Example(
            input=f"question: {row['question']} context: {row['text']}", target=row["answer"], answers=answers
        )
    return Example(
        question=row["question"], context=row["text"], answers=answers, start=row["text"].index(row["answer"])
    )


def _seen(row: Mapping[str, Any], split: str) -> Example:
    return Example(image=row["image"], label=row["label"])


_register("toy_sentiment", _sentiment, ("negative", "positive"))
_register("toy_pairs", _pair, LABELS)
register(
    Task(
        "toy_questions",
        "toy",
        _source("toy_questions", _question),
        {form: functools.partial(_answer, form) for form in ("text", "span")},
        lambda predictions, examples: metrics.squad(predictions, [e.answers for e in examples]),
        "f1",
    )
)
register(
    Task(
        "toy_images",
        "toy",
        _source("toy_images", _image),
        {"image": _seen},
        ACCURACY,
        "accuracy",
        labels=("horizontal", "vertical", "falling", "rising"),
    )
)
