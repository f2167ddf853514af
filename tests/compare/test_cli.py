"""The commands compare, profile and reproduce: what they print, and mistakes answered in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, call, mistake

from tokenmix.cli.options import run_settings
from tokenmix.compare.profile import exponent, length_curve, profile
from tokenmix.models import preset_config


def test_compare_takes_the_models_after_one_option_and_writes_everything(tmp_path: Path) -> None:
    out = tmp_path / "out"
    models = ["--models", "transformer", "random | geglu", "mine=gmlp ; dot | geglu"]
    text = call("compare", "--task", "scan", *models, "--out", str(out), *TINY, "--set", "model.options.max_length=64")
    for name in ("transformer", "random | geglu", "mine", "baseline"):
        assert name in text
    for name in ("comparison.json", "table.csv", "table.md", "report.html"):
        assert (out / name).exists()
        assert str(out / name) in text
    result = json.loads((out / "comparison.json").read_text())
    assert [row["name"] for row in result["models"]] == ["transformer", "random | geglu", "mine"]
    assert result["models"][2]["decoder_layer"] == "dot | geglu"
    assert "model.options.max_length=64" in result["command"] or result["command"]


def test_a_budget_among_the_options_replaces_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("budget: {steps: 2}\noptimizer: {lr: 0.5}\n")
    assert run_settings(file, None, epochs=1.0) == {"budget": {"epochs": 1.0}, "optimizer": {"lr": 0.5}}
    assert run_settings(file, ["optimizer.lr=0.1"]) == {"budget": {"steps": 2}, "optimizer": {"lr": 0.1}}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["compare", "trnsformer"], "did you mean 'transformer'"),
        (["compare", "dot | geglu", "random | gegl"], "did you mean 'geglu'"),
        (["compare"], "no models"),
        (["compare", "gmlp", "--task", "scann"], "did you mean 'scan'"),
        (["compare", "gmlp", "--task", "cogs", "--data", "/nonexistent"], "data not found"),
        (["compare", "gmlp", "--metric", "bleu"], "exact_match"),
        (["compare", "gmlp", "--split", "dev"], "split of task 'scan'"),
        (["compare", "gmlp", "--match", "size"], "Known: flops, none, params"),
        (["compare", "gmlp", "--baseline", "dot"], "unknown baseline 'dot'"),
        (["compare", "gmlp", "--seeds", "many"], "expected how many"),
        (["compare", "gmlp", "--seeds", "1,1"], "names a seed twice"),
        (["compare", "gmlp", "--engine", "slurm"], "Known: local, ray"),
        (["search", "--term", "lightconv"], "'lightconv' is no attention term"),
        (["search", "--start", "fourier | mlp"], "not in the space searched"),
        (["reproduce", "--ledger", "/proc/never.md", "--results", "nope"], "no folder of results at nope"),
        (["reproduce", "--save", "nope"], "name a recipe"),
        (["reproduce", "remixer-table-4", "--only", "nope"], "'Mixer Enc, Base'"),
        (["compare", "gmlp", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["compare", "transformer", "linformer"], "model 'linformer'"),
        (["profile", "t5-tiny"], "unknown model 't5-tiny'"),
        (["profile", "gmlp", "--lengths", "8"], "at least two lengths"),
        (["profile", "t5-v1.1-tiny", "--length", "9999"], "exceeds max_length=128"),
        (["profile", "gmlp", "--set", "d_modl=3"], "did you mean 'd_model'"),
        (["reproduce", "gmlp-table-33"], "did you mean 'gmlp-table-3'"),
        (["reproduce", "gmlp-table-3", "--scale", "huge"], "Known: bench, paper, tiny"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENMIX_DATA", str(tmp_path))
    assert message in mistake(monkeypatch, capsys, *arguments)


def test_profile_counts_and_times() -> None:
    text = call("profile", "t5-v1.1-tiny", "gmlp-tiny", "--batch", "2", "--length", "16", "--steps", "1")
    assert "t5-v1.1-tiny" in text
    assert "steps/s" in text
    rows: Any = json.loads(
        call("profile", "remixer-tiny", "--length", "16", "--steps", "1", "--lengths", "8,16", "--json")
    )
    (row,) = rows
    assert row["parameters"]["total"] == sum(v for k, v in row["parameters"].items() if k != "total")
    assert row["flops_backward"] == 2 * row["flops_forward"]["total"]
    assert row["flops_step"] == 3 * row["batch"] * row["flops_forward"]["total"]
    assert row["steps_per_second"] > 0
    assert row["peak_share"] > 0
    assert row["memory_bytes"] > 0
    assert [point["length"] for point in row["curve"]["points"]] == [8, 16]


def test_counting_alone_needs_no_time() -> None:
    found = profile(preset_config("t5-v1.1-base"), length=512, target_length=114, steps=0)
    assert found["parameters"]["total"] == 247_577_856
    assert found["steps_per_second"] is None


def test_exponent_of_a_power_law() -> None:
    assert exponent([(2, 1.0), (4, 8.0), (8, 64.0)]) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="at least two lengths"):
        length_curve(preset_config("gmlp-tiny"), [8])
    with pytest.raises(ValueError, match="whole images"):
        length_curve(preset_config("vit-tiny"), [8, 16])


def test_reproduce_lists_plans_runs_and_writes_the_ledger(tmp_path: Path) -> None:
    assert "synthesizer-table-7" in call("reproduce")
    plan = json.loads(call("reproduce", "gmlp-table-3", "--plan", "--json"))
    assert plan["seeds"] == 3
    assert plan["gpu_minutes"] > 1
    assert len(plan["stages"][0]["models"]) == 9
    text = call(
        "reproduce", "gmlp-table-1", "--scale", "tiny", "--out", str(tmp_path), "--save", str(tmp_path / "results")
    )
    assert "73.4" in text
    assert "gMLP-B" in text
    result = json.loads((tmp_path / "results" / "gmlp-table-1.json").read_text())
    assert result["recipe"] == "gmlp-table-1"
    page = tmp_path / "claims.md"
    call("reproduce", "--ledger", str(page), "--results", str(tmp_path / "results"))
    assert "gMLP, Table 1" in page.read_text()
    assert "not run yet" in page.read_text()


def test_a_result_is_never_saved_over_one_of_another_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "remixer-table-1.json"
    kept.write_text(json.dumps({"scale": "bench", "seeds": 1, "changed": {}, "stages": {}, "rows": []}))
    asked = ("reproduce", "remixer-table-1", "--scale", "tiny", "--out", str(tmp_path / "runs"), "--save")
    assert "is a result at scale bench, not tiny" in mistake(monkeypatch, capsys, *asked, str(tmp_path))
    assert "--save takes a folder" in mistake(monkeypatch, capsys, *asked, str(kept))
    assert json.loads(kept.read_text())["scale"] == "bench"
    kept.write_text("[1]")
    assert "is no result of `tokenmix reproduce`" in mistake(monkeypatch, capsys, *asked, str(tmp_path))
