"""Runs: killed and resumed, repeated, failed, side by side and on Ray, always the same table."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import tokenmix.training
from tokenmix.compare.comparison import compare
from tokenmix.compare.engine import run_all
from tokenmix.compare.live import Live
from tokenmix.compare.plan import Judging, contenders, specs
from tokenmix.compare.table import failures, markdown, rich_table, to_csv
from tokenmix.training.faults import FolderInUse

MODELS = ["transformer", "random | geglu"]
SETTINGS: dict[str, Any] = {
    "data": {"task": "scan", "limit": 64, "batch_size": 4},
    "model": {"options": {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1, "max_length": 64, "dropout": 0.1}},
    "budget": {"steps": 6},
    "validation": {"every": 3, "examples": 4},
    "checkpoints": {"every": 2},
    "log_every": 1,
    "device": {"device": "cpu", "threads": 1},
}


def quiet() -> Live:
    return Live(Console(file=io.StringIO()))


def run(
    out: Path, models: list[str] | None = None, settings: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    options = {"judging": Judging(examples=8), "report": False, "live": quiet(), **options}
    return compare(models or MODELS, settings or SETTINGS, out=out, **options)


def numbers(result: dict[str, Any]) -> Any:
    """All that must not depend on where and how often a run was started."""
    return [
        {
            **{
                name: row[name]
                for name in ("name", "layer", "parameters", "flops_step", "mean", "difference", "interval")
            },
            "runs": [
                {
                    **{name: run[name] for name in ("seed", "status", "steps", "metrics", "categories")},
                    "curve": [{k: v for k, v in point.items() if k != "seconds"} for point in run["curve"]],
                }
                for run in row["runs"]
            ],
        }
        for row in result["models"]
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("reference"))


def test_result_has_everything_a_report_needs(reference: dict[str, Any], tmp_path: Path) -> None:
    for name in ("task", "form", "split", "metric", "higher_is_better", "budget", "match", "baseline", "command"):
        assert reference[name] is not None
    assert reference["versions"]["torch"]
    assert reference["hardware"]["cpus"]
    assert reference["created"]
    assert (reference["metric"], reference["split"], reference["baseline"]) == ("exact_match", "test", "transformer")
    for row in reference["models"]:
        assert row["parameters"] > 1000
        assert row["flops_forward"] > 0
        assert row["steps_per_second"] > 0
        assert row["memory_bytes"] > 1e7
        (only,) = row["runs"]
        assert only["status"] == "done"
        assert only["steps"] == 6
        assert [point["step"] for point in only["curve"]] == [1, 2, 3, 4, 5, 6]
        assert "metric" in only["curve"][-1]
        assert "loss" in only["curve"][0]
    json.dumps(reference)


def test_table_in_every_form(reference: dict[str, Any]) -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(rich_table(reference))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for form in (text, markdown(reference), to_csv(reference)):
        assert "random" in form
        assert "exact_match" in form
    header, first, *_ = to_csv(reference).splitlines()
    assert len(header.split(",")) == len(first.split(","))
    assert "exact_match_seed0" in header


def test_finished_runs_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: dict[str, Any]) -> None:
    first = run(tmp_path)
    assert numbers(first) == numbers(reference)  # equal seeds, equal numbers

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(tokenmix.training, "train", never)
    again = run(tmp_path)
    assert numbers(again) == numbers(first)
    assert again["models"][0]["steps_per_second"] == first["models"][0]["steps_per_second"]


def test_all_models_see_the_same_batches(reference: dict[str, Any]) -> None:
    tokens = [
        [point["tokens"] for point in row["runs"][0]["curve"] if "tokens" in point] for row in reference["models"]
    ]
    assert tokens[0] == tokens[1]


def test_failed_run_is_shown_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tokenmix.training.train

    def fails_for_one(config: Any, **options: Any) -> Any:
        if config.model.layer == "random | geglu":
            raise RuntimeError("the weights\nexploded")
        return real(config, **options)

    monkeypatch.setattr(tokenmix.training, "train", fails_for_one)
    result = run(tmp_path, ["random | geglu", "transformer"], baseline="transformer")
    broken, fine = result["models"]
    assert broken["runs"][0]["status"] == "failed"
    assert broken["runs"][0]["error"] == "RuntimeError: the weights exploded"
    assert broken["mean"] is None
    assert broken["difference"] is None
    assert fine["runs"][0]["status"] == "done"
    assert failures(result) == ["random | geglu, seed 0: RuntimeError: the weights exploded"]
    assert "1 failed" in markdown(result)
    monkeypatch.setattr(tokenmix.training, "train", real)
    repaired = run(tmp_path, ["random | geglu", "transformer"], baseline="transformer")  # a failure is tried again
    assert repaired["models"][0]["runs"][0]["status"] == "done"


def test_several_seeds_give_mean_deviation_and_interval(tmp_path: Path) -> None:
    short = {**SETTINGS, "budget": {"steps": 2}, "validation": {"every": 0, "examples": 4}}
    result = run(tmp_path, settings=short, seeds=[3, 4], rule="params", judging=Judging(examples=4, metric="loss"))
    assert result["metric"] == "loss"
    assert result["higher_is_better"] is False
    first, second = result["models"]
    losses = [[r["metrics"]["loss"] for r in row["runs"]] for row in (first, second)]
    assert losses[0][0] != losses[0][1]
    assert second["mean"] == pytest.approx(sum(losses[1]) / 2)
    assert second["difference"] == pytest.approx(sum(losses[1]) / 2 - sum(losses[0]) / 2)
    assert second["interval"][0] <= second["difference"] <= second["interval"][1]
    assert result["match"]["achieved"]["random | geglu"]["ratio"] > 0


def test_killed_comparison_ends_with_the_same_table(tmp_path: Path, reference: dict[str, Any]) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    command = [sys.executable, "-m", "tokenmix", "compare", *MODELS, "--config", str(tmp_path / "settings.json")]
    command += ["--examples", "8", "--out", str(tmp_path / "out"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        until = time.monotonic() + 120
        while not list((tmp_path / "out").glob("runs/random*/checkpoints/00000002/manifest.json")):
            assert process.poll() is None or list((tmp_path / "out").glob("runs/random*/trained.json"))
            assert time.monotonic() < until
            if process.poll() is not None:
                break
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert numbers(run(tmp_path / "out")) == numbers(reference)


def worker_processes(parent: int) -> list[int]:
    """The workers that a command has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"compare.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_command_that_is_ended_leaves_runs_that_go_on(tmp_path: Path, reference: dict[str, Any]) -> None:
    """SIGTERM, as `timeout` and schedulers send it: the workers save themselves, and the command says what to do."""
    (tmp_path / "settings.json").write_text(json.dumps({**SETTINGS, "budget": {"steps": 4000}}))
    command = [sys.executable, "-m", "tokenmix", "compare", *MODELS, "--config", str(tmp_path / "settings.json")]
    command += ["--examples", "8", "--out", str(tmp_path / "out"), "--jobs", "2"]
    command += ["--set", "checkpoints.every=0", "--set", "validation.every=0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    )
    until = time.monotonic() + 120
    while sum(path.stat().st_size > 0 for path in (tmp_path / "out").glob("runs/*/metrics.jsonl")) < 2:  # at a step
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    for child in worker_processes(process.pid):  # `timeout` signals the workers, too, and the command does so again
        os.kill(child, signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert "goes on from what its runs have saved" in said
    assert process.returncode == 130
    assert len(list((tmp_path / "out").glob("runs/*/checkpoints/*/manifest.json"))) == 2


def test_a_run_that_another_command_is_at_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, refused = tokenmix.training.train, []

    def watched(*given: Any, **options: Any) -> Any:
        try:
            return train(*given, **options)
        except FolderInUse:
            refused.append(True)
            raise

    (spec,) = specs(contenders(MODELS[:1]), SETTINGS, [0], tmp_path, judging=Judging(examples=4))
    (done,) = run_all([spec])
    folder = Path(spec.folder)
    (folder / "trained.json").rename(folder / "later.json")
    other = "import sys, time; from pathlib import Path; from tokenmix.training.faults import FolderLock\n"
    other += "folder = Path(sys.argv[1])\nwith FolderLock(folder):\n    print('locked', flush=True); time.sleep(2)\n"
    other += "    (folder / 'later.json').rename(folder / 'trained.json')"
    process = subprocess.Popen([sys.executable, "-c", other, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    monkeypatch.setattr(tokenmix.training, "train", watched)
    steps = (folder / "metrics.jsonl").read_text()
    (found,) = run_all([spec])
    process.wait()
    assert refused
    assert (folder / "metrics.jsonl").read_text() == steps  # it was not trained again
    assert (found["status"], found["metrics"]) == ("done", done["metrics"])


def test_side_by_side_gives_the_same_table(tmp_path: Path, reference: dict[str, Any]) -> None:
    assert numbers(run(tmp_path, jobs=2)) == numbers(reference)


def test_process_that_dies_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenmix.compare.engine as engine

    def dies(runs: Any, slot: int) -> Any:
        command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        return engine.Group(subprocess.Popen(command), list(runs), tmp_path / "log.txt")

    monkeypatch.setattr(engine, "_start", dies)
    found = run_all(specs(contenders(MODELS), SETTINGS, [0], tmp_path), jobs=2)
    assert [record["status"] for record in found] == ["failed", "failed"]
    assert "SIGKILL" in found[0]["error"]


def test_on_a_gpu_a_process_runs_the_seeds_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails, and one that dies, takes none of the others with it."""
    import tokenmix.compare.engine as engine

    short = {**SETTINGS, "budget": {"steps": 2}, "validation": {"every": 0, "examples": 4}}
    alone = run(tmp_path / "alone", settings=short, seeds=3)
    runs = specs(contenders(MODELS), short, range(3), tmp_path / "kin", judging=Judging(examples=8), threads=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_gpu = [dataclasses.replace(spec, config={**spec.config, "device": {"device": "auto"}}) for spec in runs]
    kin = [engine._kin(on_gpu, jobs) for jobs in (2, 3, 8)]
    on_cpu = engine._kin(runs, 2)
    monkeypatch.undo()
    assert [[s.label for s in group] for group in kin[0]] == [[f"{m}, seed {s}" for s in range(3)] for m in MODELS]
    assert [[len(group) for group in groups] for groups in kin[1:]] == [[2, 1, 3], [1] * 6]  # no job is left idle
    assert [len(group) for group in on_cpu] == [1] * 6

    started, start = [], engine._start

    def counted(group: Any, slot: int) -> Any:
        started.append([spec.seed for spec in group])
        made = start(group, slot)
        if group[0].label == "random | geglu, seed 0":
            made.process.kill()
        return made

    monkeypatch.setattr(engine, "_start", counted)
    monkeypatch.setattr(engine, "_kin", lambda todo, jobs: [[s for s in todo if s.model == model] for model in MODELS])
    broken = Path(next(spec.folder for spec in runs if spec.label == "transformer, seed 1"))
    broken.mkdir(parents=True)
    (broken / "trained.json").write_text("{")
    found = {(r["model"], r["seed"]): r for r in run_all(runs, jobs=2)}
    failed = {label for label, record in found.items() if record["status"] == "failed"}
    assert failed == {("transformer", 1), ("random | geglu", 0)}
    assert "SIGKILL" in found["random | geglu", 0]["error"]
    for row in alone["models"]:
        for before in row["runs"]:
            after = found[row["name"], before["seed"]]
            assert after["status"] == "failed" or after["metrics"] == before["metrics"]
    assert sorted(started) == [[0, 1, 2], [0, 1, 2], [1, 2], [2]]


def test_ray_gives_the_same_table(tmp_path: Path, reference: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert numbers(run(tmp_path, engine="ray")) == numbers(reference)


def test_unknown_engine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Known: local, ray"):
        run(tmp_path, engine="slurm")


def test_live_view_shows_each_run_on_a_line(tmp_path: Path) -> None:
    runs = specs(contenders(MODELS), SETTINGS, [0], tmp_path)
    Path(runs[0].folder).mkdir(parents=True)
    state = {
        "phase": "training",
        "step": 3,
        "fraction": 0.5,
        "loss": 1.25,
        "metric": "exact_match",
        "value": 40.0,
        "left": 7,
    }
    (Path(runs[0].folder) / "live.json").write_text(json.dumps(state))
    live = quiet()
    live._runs = runs
    assert live.line(runs[0]) == "transformer, seed 0  50%  loss 1.2500  exact_match 40.00  0:07 left"
    assert live.line(runs[1]) == "random | geglu, seed 0  waiting"
    console = Console(width=120, file=io.StringIO())
    console.print(live.table())
    assert "random | geglu" in console.file.getvalue()  # type: ignore[attr-defined]
    live.ended({"folder": runs[1].folder, "status": "failed", "error": "why not", "metrics": {}, "seconds": None})
    assert "why not" in live.line(runs[1])
