"""Mixtures: rates are met, nothing repeats within an epoch, and example k depends on (seed, k) alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmix.data.mixtures import BLOCK, MIXTURES, Mixture, mixing_rates, multitask_pretraining, named_mixture
from tokenmix.data.stream import ExampleStream

SIZES = {"large": 6000, "middle": 300, "small": 7}


class Named:
    """Examples that say where they are from."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[str, int]:
        assert 0 <= index < self.size
        return self.name, index


def mixture(seed: int = 0, **options) -> Mixture:
    return Mixture({name: Named(name, size) for name, size in SIZES.items()}, seed=seed, **options)


def test_rules_give_their_rates():
    sizes = {"a": 1600, "b": 400}
    assert mixing_rates(sizes) == {"a": 0.8, "b": 0.2}
    assert mixing_rates(sizes, "equal") == {"a": 0.5, "b": 0.5}
    assert mixing_rates(sizes, "temperature", temperature=2) == pytest.approx({"a": 2 / 3, "b": 1 / 3})
    assert mixing_rates(sizes, "temperature", temperature=1) == mixing_rates(sizes)
    assert mixing_rates(sizes, "capped", cap=400) == {"a": 0.5, "b": 0.5}
    assert mixing_rates(sizes, "temperature", temperature=2, cap=900) == pytest.approx({"a": 0.6, "b": 0.4})


@pytest.mark.parametrize("options", [{}, {"rule": "equal"}, {"rule": "temperature"}, {"rule": "capped", "cap": 100}])
def test_every_block_meets_the_rates(options):
    mixed = mixture(**options)
    for block in (0, 3):
        component, _, _ = mixed.locate(np.arange(block * BLOCK, (block + 1) * BLOCK))
        counts = dict(zip(mixed.names, np.bincount(component).tolist(), strict=True))
        assert counts == pytest.approx({name: rate * BLOCK for name, rate in mixed.rates.items()}, abs=1)


def test_components_come_evenly_within_a_block():
    component, _, _ = mixture(rule="equal").locate(np.arange(BLOCK))
    for part in np.split(component, 16):
        assert np.abs(np.bincount(part) / len(part) - 1 / 3).max() < 0.04


def test_each_component_is_read_through_before_it_repeats():
    mixed = mixture(rule="equal")
    seen = {name: [] for name in SIZES}
    for name, index in mixed.batch(np.arange(2 * BLOCK)):
        seen[name].append(index)
    for name, size in SIZES.items():
        epochs = [tuple(seen[name][n : n + size]) for n in range(0, len(seen[name]) - size, size)]
        assert len(epochs) >= 2
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        assert len(set(epochs)) > 0.9 * min(len(epochs), 2000)  # each in an order of its own
    assert seen["large"][:50] != sorted(seen["large"][:50])


@settings(max_examples=30, deadline=None)
@given(numbers=st.lists(st.integers(0, 10**9), min_size=1, max_size=6), seed=st.integers(0, 2**63))
def test_an_example_depends_on_seed_and_number_alone(numbers, seed):
    whole = mixture(seed).batch(numbers)
    fresh = Mixture({name: Named(name, SIZES[name]) for name in reversed(SIZES)}, seed=seed)
    assert whole == [fresh[number] for number in numbers]


def test_another_seed_gives_another_draw():
    assert mixture(1).batch(np.arange(100)) != mixture(2).batch(np.arange(100))


def test_explicit_rates_and_tiny_ones():
    mixed = mixture(rates={"large": 0.2, "middle": 0.8, "small": 1e-9})
    component, _, _ = mixed.locate(np.arange(BLOCK))
    assert np.bincount(component).tolist() == [round(0.2 * BLOCK), round(0.8 * BLOCK) - 1, 1]


@given(weights=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30))
def test_places_of_a_block_always_add_up(weights):
    parts = {f"c{n}": Named("", 5) for n in range(len(weights))}
    mixed = Mixture(parts, rates={f"c{n}": weight for n, weight in enumerate(weights)})
    assert mixed._slots.sum() == BLOCK
    assert mixed._slots.min() >= 1


def test_a_stream_over_a_mixture_is_the_mixture():
    mixed = mixture(5)
    stream = ExampleStream(mixed, 16)
    stream.position = 3 * len(mixed)
    batch = next(iter(stream))
    assert batch == [mixed[3 * len(mixed) + n] for n in range(16)]


def test_named_mixtures_are_the_papers():
    assert set(MIXTURES["superglue"]) == {"boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"}
    assert set(MIXTURES["en_mix"]) == {*MIXTURES["glue"], *MIXTURES["superglue"], "squad"}
    mixed = named_mixture("superglue", lambda name: Named(name, 10), published=True)
    assert mixed.rates["record"] == 138_854 / sum(MIXTURES["superglue"].values())
    assert named_mixture("superglue", lambda name: Named(name, 10)).rates["record"] == 1 / 8


def test_tasks_without_data_are_left_out_only_when_asked(caplog):
    def load(name):
        if name == "record":
            raise FileNotFoundError("record is not here")
        return Named(name, 10)

    with pytest.raises(FileNotFoundError, match="record is not here"):
        named_mixture("superglue", load)
    mixed = named_mixture("superglue", load, skip_missing=True)
    assert len(mixed.names) == 7
    assert "goes without record" in caplog.text


def test_every_task_of_a_mixture_exists():
    tasks = pytest.importorskip("tokenmix.data.task")
    for names in MIXTURES.values():
        for name in names:
            assert tasks.get_task(name).name == name


def test_multitask_pretraining_counts_the_text_as_one_capped_task():
    class Text(Named):
        def batch(self, indices, epochs):
            return {"input_ids": np.stack([indices, epochs], axis=1)}

    mixed = multitask_pretraining(
        {"qa": ["x", "y"]}, Text("text", 1000), lambda e: {"input_ids": e.upper()}, cap=6, seed=1
    )
    assert mixed.rates == {"qa": 0.25, "text": 0.75}
    examples = mixed.batch(np.arange(3000))
    counts = Counter(isinstance(example["input_ids"], str) for example in examples)
    assert 600 < counts[True] < 900
    text = [tuple(example["input_ids"]) for example in examples if not isinstance(example["input_ids"], str)]
    assert len(set(text)) == len(text)  # (index, epoch) never comes twice
    assert {epoch for _, epoch in text} == {0, 1, 2}
    with pytest.raises(ValueError, match="a task is named 'text'"):
        multitask_pretraining({"text": ["x"]}, Text("text", 3), str)


def test_mistakes_are_answered_with_what_to_do():
    with pytest.raises(ValueError, match="unknown mixing rule 'proportionate'; did you mean 'proportional'"):
        mixture(rule="proportionate")
    with pytest.raises(ValueError, match="needs cap="):
        mixture(rule="capped")
    with pytest.raises(ValueError, match="expected a positive temperature"):
        mixture(rule="temperature", temperature=0)
    with pytest.raises(ValueError, match="component 'b' has no examples"):
        Mixture({"a": [1], "b": []})
    with pytest.raises(ValueError, match="must give every component a positive share: large, middle, small"):
        mixture(rates={"large": 1})
    with pytest.raises(ValueError, match="at least one component"):
        Mixture({})
    with pytest.raises(ValueError, match="unknown mixture 'supreglue'; did you mean 'superglue'"):
        named_mixture("supreglue", list)
    with pytest.raises(IndexError, match="no end to count from"):
        mixture()[-1]
