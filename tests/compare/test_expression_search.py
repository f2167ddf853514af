"""Searching over expressions: the space, the proposals, and what is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, call, mistake

from tokenmix.compare import search as searching
from tokenmix.compare.search import Space, Trial, described, same, search

pytest.importorskip("optuna")
SMALL = Space(terms=("dot", "random"), mixers=("lightconv",), channels=("geglu", "remix"))


def scored(
    monkeypatch: pytest.MonkeyPatch, score: Any, higher: bool = True, sizes: dict[str, float] | None = None
) -> list[list[str]]:
    """In place of training: each expression's value from ``score``. Returns the batches that were asked for."""
    batches: list[list[str]] = []

    def compare(entries: Any, settings: Any, *, seeds: list[int], baseline: str, **_: Any) -> dict[str, Any]:
        batches.append([entry.name for entry in entries if entry.name != baseline or len(entries) == 1])
        rows = []
        for entry in entries:
            value = score(entry.name)
            status, metrics = ("failed", {}) if value is None else ("done", {"accuracy": value})
            run = {"seed": seeds[0], "status": status, "metrics": metrics, "seconds": 1.0, "error": value and None}
            rows.append({"name": entry.name, "parameters": 10, "steps_per_second": 5.0, "runs": [run]})
        achieved = {name: {"ratio": ratio} for name, ratio in (sizes or {}).items()}
        about = {"task": "scan", "split": "test", "metric": "accuracy", "budget": {}, "settings": {}}
        return {**about, "higher_is_better": higher, "match": {"achieved": achieved}, "models": rows}

    monkeypatch.setattr(searching, "compare", compare)
    return batches


def test_a_space_holds_each_expression_once_and_none_that_mixes_nothing() -> None:
    found = list(SMALL)
    assert len(found) == len(set(found)) == 9
    assert set(found) == {
        "remix", "dot | geglu", "dot | remix", "random | geglu", "random | remix", "dot + random | geglu",
        "dot + random | remix", "lightconv | geglu", "lightconv | remix",
    }  # fmt: skip
    both = Space(terms=("dot",), mixers=(), channels=("geglu", "remix"), decoder=True)
    assert len(list(both)) == 3 * 3
    assert "dot | geglu ; remix" in both
    assert "dot | geglu" in both  # on both sides
    assert "random | geglu" not in both


def test_choices_lead_back_to_their_expression_whatever_the_order_of_a_sum() -> None:
    for layer in SMALL:
        choices = SMALL.choices(layer)
        assert SMALL.draw(lambda name, values, chosen=choices: chosen[name]) == layer
    assert SMALL.choices("random + dot|geglu") == SMALL.choices("dot + random | geglu")
    assert not same("random + dot | geglu", 'mix(random, dot, alpha="sum") | geglu')
    with pytest.raises(
        ValueError, match=r"'dense \| geglu' is not in the space searched; it has terms dot, random; mix"
    ):
        SMALL.choices("dense | geglu")


def test_a_space_that_cannot_be_searched_says_why() -> None:
    with pytest.raises(ValueError, match="'lightconv' is no attention term"):
        Space(terms=("lightconv",))
    with pytest.raises(ValueError, match="nothing in this space mixes tokens"):
        Space(terms=(), mixers=(), channels=("mlp",))
    with pytest.raises(ValueError, match="at least one channel"):
        Space(channels=())
    with pytest.raises(ValueError, match="did you mean 'random'"):
        Space(terms=("randm",))


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_expression_is_tried_once_and_the_best_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    batches = scored(monkeypatch, lambda layer: float(len(layer)))
    found = search({"data": {"task": "scan"}}, SMALL, trials=50, out=tmp_path, jobs=jobs)
    assert found[0].layer == "dot + random | geglu"
    assert sorted(trial.layer for trial in found) == sorted(SMALL)
    assert [trial.value for trial in found] == sorted((float(len(layer)) for layer in SMALL), reverse=True)
    assert max(map(len, batches)) <= jobs
    stored = json.loads((tmp_path / "search.json").read_text())
    assert [trial["layer"] for trial in stored["trials"]] == [trial.layer for trial in found]
    assert stored["space"]["terms"] == ["dot", "random"]


def test_the_baseline_and_what_is_named_are_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = scored(monkeypatch, lambda layer: 1.0)
    search(
        {"data": {"task": "scan"}}, SMALL, trials=3, start=["lightconv | remix", "random + dot | geglu"], out=tmp_path
    )
    assert batches == [["dot | geglu"], ["lightconv | remix"], ["dot + random | geglu"]]


def test_the_same_search_proposes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = scored(monkeypatch, lambda layer: float(sum(map(ord, layer)) % 17))
    for _ in range(2):
        search({"data": {"task": "scan"}}, Space(), trials=20, out=tmp_path)
    assert batches[:20] == batches[20:]
    assert len({layer for batch in batches for layer in batch}) == 20


def test_proposals_learn_from_what_was_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`remix` and `random` are good: of later trials more have both than of all expressions (11%)."""
    batches = scored(monkeypatch, lambda layer: 10.0 * ("remix" in layer) + 10.0 * (" random" in f" {layer}"))
    space = Space(terms=("dot", "random", "factorized_random", "dense", "relative"))
    assert sum("remix" in layer and " random" in f" {layer}" for layer in space) / len(list(space)) < 0.12
    search({"data": {"task": "scan"}}, space, trials=36, out=tmp_path)
    late = [batch[0] for batch in batches[16:]]
    assert sum("remix" in layer and " random" in f" {layer}" for layer in late) / len(late) > 0.25


def test_failures_and_what_is_too_large_come_last_and_less_may_be_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = dict.fromkeys(SMALL, 5.0) | {"dot | remix": 1.0, "remix": None, "lightconv | geglu": 2.0}
    scored(monkeypatch, values.get, higher=False, sizes={"dot | remix": 1.4, "lightconv | geglu": 0.8})
    found = search({"data": {"task": "scan"}}, SMALL, trials=9, out=tmp_path)
    assert found[0].layer == "lightconv | geglu"
    assert [trial.layer for trial in found[-2:]] == ["dot | remix", "remix"]
    assert [trial.fair for trial in found] == [True] * 7 + [False, False]
    assert described(found[-2], "perplexity") == "perplexity 1, but 1.40 of the baseline's size"
    assert described(Trial("remix", None), "perplexity") == "not done"


def test_what_cannot_be_built_for_the_body_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model 'linformer'"):
        search({"data": {"task": "scan"}}, Space(mixers=("linformer",)), out=tmp_path)
    assert not (tmp_path / "runs").exists()


def test_the_command_tries_compares_and_goes_on(tmp_path: Path) -> None:
    arguments = ["search", "--task", "scan", "--trials", "3", "--finalists", "1", "--seeds", "2", *TINY]
    arguments += ["--term", "dot", "--term", "relative", "--channel", "geglu", "--channel", "mlp"]
    arguments += ["--match", "none", "--set", "model.options.max_length=64", "--out", str(tmp_path)]
    text = call(*arguments)
    assert "one seed each" in text
    assert str(tmp_path / "search.json") in text
    assert str(tmp_path / "finalists" / "report.html") in text
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert sum("seed1000" in name for name in made) == 3
    assert sum("seed0" in name or "seed1-" in name for name in made) == 4  # two models, two seeds
    again = json.loads(call(*arguments, "--json"))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == made
    assert again["finalists"]["models"][0]["name"] == "dot | geglu"
    assert len(again["trials"]) == 3


def test_the_seed_of_the_trials_does_not_confirm_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "1000 is the seed of the trials" in mistake(monkeypatch, capsys, "search", "--seeds", "0,1000")
