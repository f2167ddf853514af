"""SCAN (Lake & Baroni 2018), generated from its grammar and interpretation function: nothing to download.

    C → S and S | S after S | S          S → V twice | V thrice | V
    V → D[1] opposite D[2] | D[1] around D[2] | D | U
    D → U left | U right | turn left | turn right          U → walk | look | run | jump

>>> interpret("jump around left twice after walk")[:30]
'I_WALK I_TURN_LEFT I_JUMP I_TU'
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from tokenmix.data.readers import Row
from tokenmix.data.sources import Made
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics

PRIMITIVES = ("walk", "look", "run", "jump")
SIMPLE_TRAIN = 16_728  # of 20,910: the 80% of the paper's first experiment
LONGEST_TRAINED = 22  # actions, in the length split


@functools.cache
def commands() -> tuple[str, ...]:
    """Every command of the grammar: 20,910."""
    verbs = [*PRIMITIVES]
    for actor in (*PRIMITIVES, "turn"):
        for side in ("left", "right"):
            verbs += [f"{actor} {side}", f"{actor} opposite {side}", f"{actor} around {side}"]
    phrases = [f"{verb}{times}" for verb in verbs for times in ("", " twice", " thrice")]
    joined = [f"{first} {link} {second}" for link in ("and", "after") for first in phrases for second in phrases]
    return tuple(phrases + joined)


def interpret(command: str) -> str:
    """The actions of a command, in the names of the released files.

    >>> interpret("turn opposite left and look twice")
    'I_TURN_LEFT I_TURN_LEFT I_LOOK I_LOOK'
    """
    return " ".join(_sentence(command.split()))


def _sentence(words: list[str]) -> list[str]:
    if "and" in words:  # [[x and y]] = [[x]] [[y]]
        at = words.index("and")
        return _phrase(words[:at]) + _phrase(words[at + 1 :])
    if "after" in words:  # [[x after y]] = [[y]] [[x]]
        at = words.index("after")
        return _phrase(words[at + 1 :]) + _phrase(words[:at])
    return _phrase(words)


def _phrase(words: list[str]) -> list[str]:
    times = {"twice": 2, "thrice": 3}.get(words[-1], 1)
    return _verb(words if times == 1 else words[:-1]) * times


def _verb(words: list[str]) -> list[str]:
    actor, *rest = words
    act = [] if actor == "turn" else [f"I_{actor.upper()}"]
    if not rest:
        return act
    turn = [f"I_TURN_{rest[-1].upper()}"]
    if rest[0] == "opposite":
        return turn + turn + act
    return (turn + act) * (4 if rest[0] == "around" else 1)


def _rows(chosen: Sequence[str]) -> list[dict[str, str]]:
    return [{"command": command, "actions": interpret(command)} for command in chosen]


def _shuffled(chosen: Sequence[str]) -> list[str]:
    """In an order that is the same on every machine (files of the release are shuffled too)."""
    chosen = list(chosen)
    random.Random(0).shuffle(chosen)
    return chosen


def _simple(split: str) -> list[dict[str, str]]:
    mixed = _shuffled(commands())
    return _rows(mixed[:SIMPLE_TRAIN] if split == "train" else mixed[SIMPLE_TRAIN:])


def _length(split: str) -> list[dict[str, str]]:
    short = [c for c in commands() if (len(interpret(c).split()) <= LONGEST_TRAINED) == (split == "train")]
    return _rows(_shuffled(short))


def _primitive(primitive: str) -> Callable[[str], list[dict[str, str]]]:
    """Train on the primitive alone and on all commands without it; test on it in every composition.

    As in the released files the primitive is repeated until it makes a tenth of the training set: 1,467 times "jump" in
    14,670, 2,189 times "turn left" in 21,890. Without the repeats they are 13,204 and 19,702 distinct commands.
    """

    def rows(split: str) -> list[dict[str, str]]:
        others = [c for c in commands() if f" {primitive} " not in f" {c} "]
        if split == "train":
            return _rows(_shuffled(others + [primitive] * round(len(others) / 9)))
        return _rows(_shuffled([c for c in commands() if f" {primitive} " in f" {c} " and c != primitive]))

    return rows


def _convert(row: Row, split: str) -> Example:
    return Example(input=row["command"], target=row["actions"])


def _score(predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    return {"exact_match": metrics.exact_match(predictions, [example.target for example in examples])}


for _name, _make in {
    "scan": _simple,
    "scan_length": _length,
    "scan_add_jump": _primitive("jump"),
    "scan_add_turn_left": _primitive("turn left"),
}.items():
    _source = Made({split: functools.partial(_make, split) for split in ("train", "test")})
    register(Task(_name, "scan", (_source,), {"text": _convert}, _score, "exact_match", default_split="test"))
