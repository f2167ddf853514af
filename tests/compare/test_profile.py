"""Models measured side by side: they compile together and are timed in turn."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tokenmix.compare.profile import compiled, profile, profile_all
from tokenmix.models import preset_config

SETTINGS = {"batch": 2, "length": 16, "steps": 1, "rounds": 1}


def test_a_turn_lasts_from_before_the_first_step_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Turn:
        def __enter__(self) -> None:
            told.append("entered")

        def __exit__(self, *_: object) -> None:
            told.append("left")

    class Watched(torch.optim.AdamW):
        def step(self, *given: Any) -> Any:
            told.append("step")
            return super().step(*given)

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    profile(preset_config("gmlp-tiny"), turn=Turn(), device="cpu", **SETTINGS)
    assert told == ["entered", "step", "step", "left"]  # the warm-up, too


def test_a_compiled_model_waits_before_anything_of_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def compile_fx(graph: Any, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            told.append("ran")
            return graph(*given)

        told.append("compiled")
        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    model = compiled(nn.Linear(4, 4), lambda: told.append("waited"))
    for _ in range(2):
        model(torch.ones(1, 4))
    assert told == ["compiled", "waited", "ran", "ran"]


def test_side_by_side_models_wait_for_their_turn_and_are_measured_as_alone(tmp_path: Path) -> None:
    configs = {"gmlp": preset_config("gmlp-tiny"), "t5": preset_config("t5-v1.1-tiny")}
    turns = tmp_path / "turns"
    turns.mkdir()
    found: dict[str, Any] = {}

    def measure() -> None:
        found.update(profile_all(configs, SETTINGS, folder=tmp_path / "profile", turns=turns, jobs=2))

    with open(turns / ".lock", "a+") as mine:
        fcntl.lockf(mine, fcntl.LOCK_EX)
        at_it = threading.Thread(target=measure)
        at_it.start()
        logs = [tmp_path / "profile" / name / "log.txt" for name in configs]
        while not all(log.exists() and "waits for its turn" in log.read_text() for log in logs):
            at_it.join(timeout=0.2)
            assert at_it.is_alive()
        at_it.join(timeout=1.0)  # time enough for a step
        assert not list((tmp_path / "profile").glob("*/found.json"))
    at_it.join()
    assert set(found) == set(configs)
    for name, row in found.items():
        assert row["steps_per_second"] > 0
        alone = profile(configs[name], **{**SETTINGS, "steps": 0})
        same = ("parameters", "flops_forward", "flops_step", "layer", "body", "length")
        assert {key: row[key] for key in same} == {key: alone[key] for key in same}


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    broken = {"gmlp-tiny": preset_config("gmlp-tiny")}
    settings = {**SETTINGS, "length": 4096}
    with pytest.raises(ValueError, match=r"measuring gmlp-tiny ended with 1: .*exceeds max_length"):
        list(profile_all(broken, settings, folder=tmp_path, turns=tmp_path, jobs=2))
