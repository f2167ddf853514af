"""The tasks that need no download: SCAN's grammar and splits, and the toy corpus."""

from __future__ import annotations

import random

import pytest

from tokenmix.data.task import get_task
from tokenmix.data.tasks.scan import commands, interpret


def test_scan_has_the_published_sizes() -> None:
    assert len(set(commands())) == 20_910
    sizes = {
        name: [len(get_task(name).load(s)) for s in ("train", "test")]
        for name in ("scan", "scan_length", "scan_add_jump", "scan_add_turn_left")
    }
    assert sizes == {
        "scan": [16_728, 4_182],
        "scan_length": [16_990, 3_920],
        "scan_add_jump": [14_670, 7_706],
        "scan_add_turn_left": [21_890, 1_208],
    }


def test_scan_splits_hold_out_what_they_say() -> None:
    train, test = ({e.input for e in get_task("scan").load(s)} for s in ("train", "test"))
    assert not train & test
    assert len(train | test) == 20_910
    for name, primitive in (("scan_add_jump", "jump"), ("scan_add_turn_left", "turn left")):
        inputs = [e.input for e in get_task(name).load("train")]
        assert {c for c in inputs if primitive in c} == {primitive}
        assert inputs.count(primitive) == round(len(inputs) / 10)
        assert all(primitive in e.input for e in get_task(name).load("test"))
    lengths = [{len(e.target.split()) for e in get_task("scan_length").load(s)} for s in ("train", "test")]
    assert max(lengths[0]) == 22
    assert min(lengths[1]) == 24
    assert max(lengths[1]) == 48


@pytest.mark.parametrize(
    ("command", "actions"),
    [  # Lake & Baroni 2018, Figure 1, and the README of the release
        ("jump", "I_JUMP"),
        ("jump left", "I_TURN_LEFT I_JUMP"),
        ("jump around right", "I_TURN_RIGHT I_JUMP " * 4),
        ("turn left twice", "I_TURN_LEFT I_TURN_LEFT"),
        ("jump thrice", "I_JUMP I_JUMP I_JUMP"),
        ("jump opposite left and walk thrice", "I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK"),
        ("jump opposite left after walk around left", "I_TURN_LEFT I_WALK " * 4 + "I_TURN_LEFT I_TURN_LEFT I_JUMP"),
        ("jump around left twice after walk", "I_WALK " + "I_TURN_LEFT I_JUMP " * 8),
        ("turn around right", "I_TURN_RIGHT " * 4),
        ("turn opposite right thrice", "I_TURN_RIGHT " * 6),
    ],
)
def test_scan_commands_mean_what_is_published(command: str, actions: str) -> None:
    assert command in commands()
    assert interpret(command) == actions.strip()


def test_toy_corpus_is_the_same_each_time_and_answers_itself() -> None:
    toy = get_task("toy")
    documents = [e.target for e in toy.load("train")]
    assert documents == [e.target for e in toy.load("train")]
    assert not set(documents) & {e.target for e in toy.load("validation")}
    document = random.Random(0).choice(documents)
    thing = document.split("Where is the ")[1].split("?")[0]
    assert thing in document.split("Where is")[0]
