"""The pages as files: policy, escaping, what stands in them, and what they make of incomplete comparisons."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import made_comparison as made
import numpy as np
import pytest
from typer.testing import CliRunner

from tokenmix.cli import app, load_commands
from tokenmix.report import write_inspection, write_report
from tokenmix.report.charts import metric_name
from tokenmix.report.look import look
from tokenmix.report.page import embedded, explorer_data, figure_page, fitted, packed, page, unpacked
from tokenmix.report.runs import open_run


def data_of(text: str) -> dict[str, Any]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(block)


def visible(text: str) -> str:
    """The text of a page as a reader sees it, roughly."""
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def check_policy(text: str) -> None:
    """Scripts and styles by hash, nothing from elsewhere, no handlers and no styles in attributes."""
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    policy = html.unescape(policy)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.S)
    assert not re.search(r"<[^>]*\s(on\w+|style)\s*=", body)
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:|//|javascript:)""", body)
    assert text.index("Content-Security-Policy") < text.index("<script")


# ------------------------------------------------------------------------------------------------------- the report


def test_report_is_one_small_file_under_a_strict_policy(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    check_policy(text)
    assert report.stat().st_size < 2_000_000
    assert not re.search(r"\{\{\w+\}\}", text)


def test_text_from_data_stays_text(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert made.ATTACK not in text
    assert text.count("<script") == 2  # the data and the script, nothing else
    assert "<b>now</b>" not in text
    assert "</script><!--" not in text
    assert visible(text).count(made.ATTACK) >= 5  # table, legend, chart, categories, note, configuration
    assert any(m["name"] == made.ATTACK for m in data_of(text)["explorers"]["models"])


def test_report_holds_what_was_measured(report: Path) -> None:
    result = json.loads((report.parent / "comparison.json").read_text(encoding="utf-8"))
    text = report.read_text(encoding="utf-8")
    seen = visible(text)
    for model in result["models"]:
        assert model["name"] in seen
        assert f"{model['mean']:.1f}" in seen
        assert f'data-value="{model["mean"]}"' in text
        assert f'data-value="{model["parameters"]}"' in text
    assert result["command"] in seen
    assert "loss is not finite at step 412: lower the learning rate <b>now</b>" in seen
    assert "1 of 3 failed" in seen
    for category in made.CATEGORIES:
        assert category in seen
    for name in ("learning-metric", "learning-loss", "cost-parameters", "cost-flops-step", "mixing-matrices"):
        assert (report.parent / "figures" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
        assert f'href="figures/{name}.svg"' in text


def test_curves_of_the_page_are_the_mean_over_finished_seeds(report: Path) -> None:
    result = json.loads((report.parent / "comparison.json").read_text(encoding="utf-8"))
    chart = data_of(report.read_text(encoding="utf-8"))["charts"]["learning-metric"]
    for curve, model in zip(chart["curves"], result["models"], strict=True):
        done = [run for run in model["runs"] if run["status"] == "done"]
        for step, value in curve["points"]:
            values = [entry["metric"] for run in done for entry in run["curve"] if entry["step"] == step]
            assert value == pytest.approx(sum(values) / len(done))


def test_matrices_of_the_page_are_those_of_the_saved_models(report: Path) -> None:
    result = json.loads((report.parent / "comparison.json").read_text(encoding="utf-8"))
    entries = data_of(report.read_text(encoding="utf-8"))["explorers"]["models"]
    assert [entry["name"] for entry in entries] == [model["name"] for model in result["models"]]
    model, tokenizer = open_run(result["models"][3]["runs"][0]["folder"])
    sight = look(model, made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    assert len(entries[3]["matrices"]) == len(sight.matrices) == 2 * 2 + 2 * 3
    for entry, matrix in zip(entries[3]["matrices"], sight.matrices):
        assert (entry["label"], entry["layer"]) == (matrix.label, matrix.layer)
        assert tuple(entries[3]["tokens"][entry["rows"]]) == matrix.rows
        assert tuple(entries[3]["tokens"][entry["columns"]]) == matrix.columns
        np.testing.assert_allclose(unpacked(entry["packed"]), matrix.values, atol=1e-5)


def test_verdict_says_how_sure_it_is(tmp_path: Path) -> None:
    result = made.comparison(tmp_path, weights=False)
    assert "random + dot | geglu is best on scan" in visible(write_report(tmp_path, matrices=False).read_text("utf-8"))
    best = result["models"][2]
    best |= {"significant": False, "interval": [-0.4, 1.5]}
    (tmp_path / "comparison.json").write_text(json.dumps(result))
    seen = visible(write_report(tmp_path, matrices=False).read_text("utf-8"))
    assert "random + dot | geglu leads on scan" in seen
    assert "of the difference over 3 seeds goes from −0.4 to +1.5, so the two cannot be told apart" in seen
    best["mean"] = result["models"][0]["mean"] = 99.0
    (tmp_path / "comparison.json").write_text(json.dumps(result))
    assert "No model leads on scan" in visible(write_report(tmp_path, matrices=False).read_text("utf-8"))
    best["mean"], result["baseline"] = 99.5, best["name"]
    (tmp_path / "comparison.json").write_text(json.dumps(result))
    assert "It is the baseline" in visible(write_report(tmp_path, matrices=False).read_text("utf-8"))


def test_report_of_runs_that_cannot_be_opened_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made.comparison(tmp_path, weights=False)
    seen = visible(write_report(tmp_path).read_text("utf-8"))
    assert "transformer: not shown (no model in" in seen
    assert "mixing matrices of transformer" in caplog.text


def test_report_moves_with_its_folder(report: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(report.parent, moved)
    result = json.loads((moved / "comparison.json").read_text(encoding="utf-8"))
    for model in result["models"]:
        for run in model["runs"]:
            run["folder"] = f"/nowhere/runs/{Path(run['folder']).name}"
    (moved / "comparison.json").write_text(json.dumps(result), encoding="utf-8")
    assert len(data_of(write_report(moved).read_text("utf-8"))["explorers"]["models"]) == 5


@pytest.mark.parametrize("state", ["unfinished", "one seed", "perplexity", "bare"])
def test_incomplete_comparisons_have_a_page(tmp_path: Path, state: str) -> None:
    result = made.comparison(tmp_path, weights=False, seeds=1 if state == "one seed" else 2)
    for model in result["models"]:
        if state == "unfinished":
            model |= dict.fromkeys(("mean", "deviation", "difference", "interval", "significant", "p", "parameters"))
            model["runs"] = [
                {"seed": 0, "status": "unfinished", "error": None, "folder": "x", "steps": None, "seconds": None}
            ]
        if state == "one seed":
            model |= {"deviation": None, "interval": None, "significant": None}
        if state == "bare":
            for key in ("config", "flops_step", "steps_per_second", "memory_bytes", "layer", "p"):
                model[key] = None
            for run in model["runs"]:
                run |= {"curve": [], "categories": {}}
    if state == "perplexity":
        result |= {"metric": "perplexity", "higher_is_better": False}
        for model in result["models"]:
            model |= {"mean": 100 - model["mean"], "difference": -(model["difference"] or 0)}
    if state == "bare":
        for key in ("budget", "match", "versions", "hardware", "created", "note", "example", "command"):
            del result[key]
    (tmp_path / "comparison.json").write_text(json.dumps(result), encoding="utf-8")
    text = write_report(tmp_path, matrices=False).read_text("utf-8")
    check_policy(text)
    seen = visible(text)
    assert {
        "unfinished": "scan: no run has finished",
        "one seed": "with one seed",
        "perplexity": "perplexity, lower is better",
        "bare": "the command was not recorded",
    }[state] in seen


def test_mistakes_are_answered_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"comparison\.json, which `tokenmix compare` writes"):
        write_report(tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        write_report(tmp_path)
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(ValueError, match="no list of models"):
        write_report(tmp_path)


def test_metrics_have_their_unit() -> None:
    assert metric_name("exact_match") == "exact match (%)"
    assert metric_name("perplexity") == "perplexity"


# --------------------------------------------------------------------------------------------------------- the shell


@pytest.mark.parametrize(
    "value", ["</script><script>alert(1)</script>", "<!--<script>", "\u2028 & \u2029", "{{title}}"]
)
def test_embedded_json_cannot_leave_its_block(value: str) -> None:
    text = page(value, f"<main>{html.escape(value)}</main>", {"charts": {value: value}})
    assert data_of(text)["charts"] == {value: value}
    assert text.count("<script") == 2
    assert not set("<>&\u2028\u2029") & set(embedded(value))
    check_policy(text)


def test_matrices_come_back_from_a_page_to_five_digits() -> None:
    values = np.random.default_rng(0).normal(size=(3, 7, 5))
    np.testing.assert_allclose(unpacked(packed(values)), values, atol=(values.max() - values.min()) / 65535)
    np.testing.assert_array_equal(unpacked(packed(np.full((2, 2), 0.25))), np.full((2, 2), 0.25))


def test_matrices_too_large_for_a_page_are_averaged_then_thinned() -> None:
    from tokenmix import create_model

    sight = look(create_model("t5-v1.1-tiny", layers=6, decoder_layers=1), None, length=16)
    whole, said = fitted(sight.matrices, 10**9)
    assert (len(whole), said) == (len(sight.matrices), "")
    means, said = fitted(sight.matrices, 16 * 16 * 3 * 9)
    assert len(means) == len(sight.matrices)
    assert all(mean for _, mean in means)
    assert "averaged" in said
    some, said = fitted(sight.matrices, 16 * 16 * 3 * 6)
    assert {matrix.layer for matrix, _ in some} == {1, 3, 6}
    assert "layers 1, 3, 6" in said
    assert fitted(sight.matrices, 10)[0] == []
    entry, _ = explorer_data("x", sight, 16 * 16 * 3 * 9)
    np.testing.assert_allclose(unpacked(entry["matrices"][0]["packed"])[0], sight.matrices[0].mean, atol=1e-4)


def test_a_figure_is_a_page_of_its_own() -> None:
    from tokenmix import create_model, figures

    figure = figures.spatial_matrices(create_model("gmlp-tiny"))
    text = figure_page([figure], made.ATTACK, "lead")
    check_policy(text)
    found = data_of(text)["matrices"]["spatial-matrices:0:0"]
    np.testing.assert_allclose(unpacked(found), figure.data["layer 1"], atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- inspect


FIGURES = {
    "remixer-tiny": {"remixer-memory", "remixer-memory-decoder", "attention-maps-cross"},
    "synthesizer-r-tiny": {"spatial-matrices", "spatial-matrices-decoder", "token-filters", "attention-maps-decoder"},
    "amlp-tiny": {"spatial-matrices", "token-filters", "tiny-attention"},
    "lm-tiny": {"attention-maps-decoder"},
    "mixer-tiny": {"spatial-matrices", "token-filters-decoder"},
    "fnet-tiny": {"spatial-matrices"},
}


@pytest.mark.parametrize("preset", FIGURES)
def test_inspect_draws_what_the_model_has(tmp_path: Path, preset: str) -> None:
    run = made.save_run(tmp_path / "run", preset)
    written = write_inspection(run, inputs=made.TEXT, png=False)
    assert written == run / "inspect" / "index.html"
    text = written.read_text("utf-8")
    check_policy(text)
    drawn = set(re.findall(r'<figure class="plate" id="([\w-]+)"', text))
    assert FIGURES[preset] | {"weight-histograms"} <= drawn
    assert ("remixer-memory" in drawn) == (preset == "remixer-tiny")
    assert ("tiny-attention" in drawn) == (preset == "amlp-tiny")
    for name in drawn:
        assert (written.parent / f"{name}.svg").exists()
        assert not (written.parent / f"{name}.png").exists()


def test_inspect_from_the_command_line(tmp_path: Path) -> None:
    load_commands()
    run, out = made.save_run(tmp_path / "run", "amlp-tiny"), tmp_path / "out"
    command = ["inspect", str(run), "--text", f"jump {made.ATTACK}", "--text", "walk", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert (out / "index.html").as_uri() in result.output.replace("\n", "")
    text = (out / "index.html").read_text("utf-8")
    assert made.ATTACK not in text
    for name in re.findall(r'<figure class="plate" id="([\w-]+)"', text):
        assert (out / f"{name}.svg").exists()
        assert (out / f"{name}.png").exists()


def test_inspect_reads_an_image(tmp_path: Path) -> None:
    from PIL import Image

    from tokenmix import create_model

    load_commands()
    made.stir(create_model("gmlp-vision-tiny")).save_pretrained(tmp_path / "run")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)).save(tmp_path / "cat.png")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "run"), "--image", str(tmp_path / "cat.png")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "run" / "inspect" / "index.html").read_text("utf-8")
    assert 'id="patch-filters"' in text
    assert data_of(text)["explorers"]["run"][0]["grid"] == [4, 0]


def test_inspect_without_a_text_reads_an_example_of_the_runs_task(tmp_path: Path) -> None:
    run = made.save_run(tmp_path / "run")
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"q": "jump twice", "a": "walk"}) + "\n", encoding="utf-8")
    (run / "config.yaml").write_text(f'data: {{task: "file:{data}?input=q&target=a"}}', encoding="utf-8")
    text = write_inspection(run, png=False).read_text("utf-8")
    assert "“jump twice </s>”" in visible(text)
    (run / "config.yaml").unlink()
    assert "read an empty input" in visible(write_inspection(run, png=False).read_text("utf-8"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{missing}"], "no model in"),
        (["{run}", "--text", "a", "--image", "b.png"], "one or the other"),
        (["{run}", "--text", "a", "--text", "b", "--text", "c"], "once for a text, twice for a pair"),
        (["{run}", "--image", "b.png"], "no such image"),
        (["{foreign}"], "not of a tokenmix model"),
        (["{weightless}"], "no weights"),
        (["{damaged}"], "the weights in .* are damaged .*take a checkpoint of the run"),
        (["{encoder}", "--text", "jump", "--target", "walk"], "--target is for models that answer with text"),
        (["{run}", "--text", "jump", "--text", "walk"], "--text twice is for models that read pairs"),
        (["{run}", "--target", "walk"], "--target was given without --text"),
    ],
)
def test_inspect_answers_mistakes(tmp_path: Path, arguments: list[str], message: str) -> None:
    load_commands()
    run = made.save_run(tmp_path / "run")
    for name in ("foreign", "weightless"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "foreign" / "model.safetensors").touch()
    made.save_run(tmp_path / "encoder", "bert-tiny")
    damaged = made.save_run(tmp_path / "damaged") / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    places = {
        "run": run,
        "damaged": tmp_path / "damaged",
        "encoder": tmp_path / "encoder",
        "missing": tmp_path / "missing",
        "foreign": tmp_path / "foreign",
        "weightless": tmp_path / "weightless",
    }
    result = CliRunner().invoke(app, ["inspect", *(argument.format(**places) for argument in arguments)])
    assert result.exit_code != 0
    assert re.search(message, str(result.exception))
