"""`tokenmix train`, `evaluate` and `predict` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokenmix.cli import app, load_commands
from tokenmix.evaluation.evaluate import evaluate, open_checkpoint
from tokenmix.evaluation.predictions import by_length

load_commands()
SIZES = ["--d-model", "16", "--d-ff", "32", "--heads", "2", "--layers", "1"]


def command(*arguments: Any, given: str | None = None) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    made = command(
        "train", "--model", "remixer-tiny", "--task", "scan", "--out", folder, "--steps", 6, "--save-every", 3, *SIZES,
        "--limit", 100, "--validation-examples", 8, "--device", "cpu", "--set", "log_every=2",
    )  # fmt: skip
    assert "step 2/6  loss" in made.stderr
    assert "validation at step 6" in made.stderr
    assert f"model and tokenizer   {folder}" in made.stderr
    return folder


def test_evaluate_prints_metrics_of_several_tasks_and_checkpoints(run: Path, tmp_path: Path) -> None:
    written = tmp_path / "predictions.jsonl"
    made = command(
        "evaluate", run, run / "checkpoints/00000003", "--task", "scan", "--task", "scan_length", "--split", "test",
        "--limit", 10, "--json", "--predictions", written, "--device", "cpu",
    )  # fmt: skip
    results = json.loads(made.stdout)
    assert [(Path(r["checkpoint"]).name, r["task"]) for r in results] == [
        ("a", "scan"), ("a", "scan_length"), ("00000003", "scan"), ("00000003", "scan_length"),
    ]  # fmt: skip
    assert all({"exact_match", "loss"} <= set(r["metrics"]) and r["examples"] == 10 for r in results)
    assert len(written.read_text().splitlines()) == 40
    assert "exact_match" in command("evaluate", run, "--limit", 4, "--beams", 2).stdout


def test_predict_answers_arguments_a_file_and_standard_input_alike(run: Path, tmp_path: Path) -> None:
    lines = ["jump twice", "walk left and look right thrice", "run"]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    by_argument = command("predict", run, *lines, "--max-tokens", 8).stdout.splitlines()
    by_file = command(
        "predict", run, "--file", tmp_path / "in.txt", "--max-tokens", 8, "--batch-size", 2
    ).stdout.splitlines()
    by_input = command("predict", run, "--max-tokens", 8, given="\n".join(lines) + "\n").stdout.splitlines()
    assert len(by_argument) == 3
    assert by_argument == by_file == by_input
    as_json = command("predict", run, *lines, "--max-tokens", 8, "--json").stdout.splitlines()
    assert [json.loads(line) for line in as_json] == [{"input": i, "prediction": p} for i, p in zip(lines, by_argument)]


def test_an_answer_does_not_depend_on_its_batch(run: Path) -> None:
    results = [next(evaluate([run], ["scan"], limit=20, batch_size=size, device="cpu")) for size in (1, 7, 64)]
    assert results[0].predictions == results[1].predictions == results[2].predictions


def test_mistakes_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected config\.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="did you mean 'scan'"):
        list(evaluate([run], ["scann"]))
    with pytest.raises(ValueError, match="unknown split"):
        list(evaluate([run], ["scan"], "tset"))
    with pytest.raises(ValueError, match="not both"):
        CliRunner().invoke(app, ["predict", str(run), "x", "--file", "y"], catch_exceptions=False)
    with pytest.raises(ValueError, match="give --out"):
        CliRunner().invoke(app, ["train", "--model", "remixer-tiny"], catch_exceptions=False)


def test_batches_go_by_length() -> None:
    assert by_length([1, 5, 3, 4], 2) == [[1, 3], [2, 0]]
