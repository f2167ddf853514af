"""A small English-like corpus, generated: for demonstrations and tests of pretraining, with nothing to download.

Each document is a short scene in which people take and leave things, and ends with questions that only its own
sentences answer: a model that looks back does better than one that knows the words' frequencies.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

from tokenmix.data.sources import Made
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics

PEOPLE = ("Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Karla", "Leo")
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "small", "new")
THINGS = ("ball", "book", "cup", "key", "lamp", "letter", "map", "ring", "shoe", "violin")
PLACES = ("garden", "kitchen", "library", "station", "school", "market", "harbour", "theatre")
SIZES = {"train": 4000, "validation": 200, "test": 200}


def document(index: int) -> str:
    """The scene of that number; the same on every machine.

    >>> document(0) == document(0) and document(0) != document(1)
    True
    """
    rng = random.Random(f"toy {index}")
    people = rng.sample(PEOPLE, rng.randint(2, 4))
    things = [f"{rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, len(people))]
    place = {person: rng.choice(PLACES) for person in people}
    left: dict[str, str] = {}
    pairs = list(zip(people, things, strict=True))
    sentences = [f"{person} went to the {place[person]} with a {thing}." for person, thing in pairs]
    for person, thing in pairs:
        if rng.random() < 0.6:
            left[thing] = place[person]
            sentences.append(f"{person} left the {thing} there.")
        else:
            place[person] = left[thing] = rng.choice(PLACES)
            sentences.append(f"Then {person} carried the {thing} to the {place[person]}.")
    for thing in rng.sample(things, len(things)):
        sentences.append(f"Where is the {thing}? It is in the {left[thing]}.")
    return " ".join(sentences)


def _rows(split: str) -> Iterator[dict[str, str]]:
    start = sum(SIZES[name] for name in list(SIZES)[: list(SIZES).index(split)])
    return ({"text": document(index)} for index in range(start, start + SIZES[split]))


register(
    Task(
        "toy",
        "pretraining",
        (Made({split: functools.partial(_rows, split) for split in SIZES}),),
        {"document": lambda row, split: Example(target=row["text"])},
        metrics.score_documents,
        "perplexity",
    )
)
