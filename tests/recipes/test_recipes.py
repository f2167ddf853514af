"""Every recipe: complete, built at the papers' sizes on the meta device, and run at `tiny`."""

from __future__ import annotations

import functools
import io
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers.initialization import no_init_weights

import tokenmix.compare.profile
import tokenmix.training
from tokenmix.compare.live import Live
from tokenmix.compare.profile import example_batch
from tokenmix.data.mixtures import MIXTURES
from tokenmix.data.task import get_task, list_tasks
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.models.create import plain
from tokenmix.recipes import get_recipe, load_recipes
from tokenmix.recipes.estimate import gpu_minutes, shape_of
from tokenmix.recipes.ledger import ledger, sections
from tokenmix.recipes.recipe import SCALES, Recipe, Stage
from tokenmix.recipes.result import scaling_figure
from tokenmix.recipes.run import config_of, contenders_of, reproduce
from tokenmix.report.scene import Mark
from tokenmix.training import RunConfig
from tokenmix.training.config import assignment, merge
from tokenmix.training.features import HEADS

RECIPES = load_recipes()
WANTED = {
    **{f"remixer-table-{n}": None for n in range(1, 6)},
    "remixer-figure-2": None,
    **{f"gmlp-table-{n}": None for n in (1, 2, 3, 4, 5, 6, 10)},
    **{f"gmlp-figure-{n}": None for n in (2, 5, 7, 8)},
    **{f"synthesizer-table-{n}": None for n in range(2, 10)},
    **{f"tokenmix-table-{n}": None for n in (1, 2)},
}
each = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_every_table_has_its_recipe() -> None:
    assert set(RECIPES) == set(WANTED)
    with pytest.raises(ValueError, match="did you mean 'gmlp-table-3'"):
        get_recipe("gmlp-tabel-3")


@each
def test_recipe_is_complete(recipe: Recipe) -> None:
    opening = recipe.doc.split("\n\n")
    assert recipe.command() in opening[1]  # it opens with the command, the time and what to expect
    assert opening[2].startswith("Time: ")
    assert "Expect:" in opening[2]
    assert set(recipe.scales) == set(SCALES) - ({"paper"} if recipe.name.startswith("tokenmix") else set())
    names = [row.name for row in recipe.rows]
    assert len(set(names)) == len(names)
    assert recipe.baseline in names
    assert recipe.claims
    assert set(recipe.lower) <= set(recipe.columns)
    for row in recipe.rows:
        assert set(row.printed) <= set(recipe.columns), row.name
    for scale in recipe.scales.values():
        assert recipe.row(recipe.baseline).runs("bench")
        filled = {column for stage in scale.stages for column in stage.columns}
        assert filled & set(recipe.columns)
        for position, stage in enumerate(scale.stages):
            if stage.after:
                assert stage.after in [earlier.name for earlier in scale.stages[:position]]
            if not stage.profile:
                task = RunConfig.of(stage.settings).data.task
                assert task.removeprefix("text:") in {*list_tasks(), *MIXTURES}


@each
def test_minutes_in_the_text_are_the_estimate(recipe: Recipe) -> None:
    if "Time: seconds" in recipe.doc:
        assert gpu_minutes(recipe, "bench") == 0
        return
    said = float(recipe.doc.split("Time: about ")[1].split(" ")[0])
    assert said == pytest.approx(gpu_minutes(recipe, "bench"), rel=0.35, abs=3)


def head_of(stage: Stage, body: str) -> str | None:
    """The head that a stage trains; what the body is pretrained with for a profile."""
    if stage.profile:
        return None
    run = RunConfig.of(stage.settings)
    task = None if run.data.task in MIXTURES else get_task(run.data.task.removeprefix("text:"))
    forms = [run.data.form] if run.data.form else task.forms if task is not None else ["text"]
    return next(HEADS[body, form] for form in forms if (body, form) in HEADS)


@functools.cache
def shapes(described: str, head: str | None, length: int, target: int | None, batch: int) -> dict[str, tuple[int, ...]]:
    """Build a model whole on the meta device, and run a batch through one layer of each stack (all are equal)."""
    options = json.loads(described)
    with torch.device("meta"), no_init_weights():
        create_model(TokenmixConfig(**options), head=head)
        small = {k: (min(v, 1) if k in ("layers", "decoder_layers") and v else v) for k, v in options.items()}
        model: Any = create_model(TokenmixConfig(**small), head=head).eval()
        inputs = example_batch(model.config, batch, length, target, "meta")
        inputs.pop("labels")
        if model.config.body == "seq2seq":
            inputs["decoder_input_ids"] = torch.zeros(batch, target or length, dtype=torch.long)
        with torch.no_grad():
            out = model(**inputs)
    logits = {"logits": out.logits} if hasattr(out, "logits") else {"start_logits": out.start_logits}
    return {name: tuple(value.shape) for name, value in logits.items()}


@each
def test_paper_configuration_is_built_and_a_batch_of_its_shapes_fits(recipe: Recipe) -> None:
    for stage in recipe.scale("paper").stages if "paper" in recipe.scales else ():
        for entry in contenders_of(recipe, "paper", stage):
            config = config_of(entry)
            if stage.profile:
                length, target, batch = (
                    stage.settings["length"],
                    stage.settings["target_length"],
                    stage.settings["batch"],
                )
                if config.body == "vision":
                    length = config.max_length
            else:
                run = RunConfig.of(stage.settings, {"model": {"name": entry.model["name"], "options": {}}})
                config = TokenmixConfig(**{**plain(config), **run.model.options})
                (length, target), batch = shape_of(run, config), run.data.batch_size
            target = (target or length) if config.body == "seq2seq" else None
            assert max(length, target or 0) <= config.max_length, entry.name
            head = head_of(stage, config.body)
            options = {k: v for k, v in plain(config).items() if k not in ("id2label", "label2id", "problem_type")}
            described = json.dumps({**options, "num_labels": config.num_labels})
            found = shapes(described, head, length, target, batch)
            if config.body == "vision":
                wanted: tuple[int, ...] = (batch, config.num_labels)
            elif head == "sequence_classification":
                wanted = (batch, config.num_labels)
            elif head == "question_answering":
                wanted = (batch, length)
            else:
                wanted = (batch, target or length, config.vocab_size)
            assert next(iter(found.values())) == wanted, entry.name


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@each
def test_tiny_scale_runs(recipe: Recipe, pool: Path) -> None:
    result = reproduce(recipe, "tiny", out=pool, report=False, live=Live(Console(file=io.StringIO())))
    for stage in result["stages"].values():
        for row in stage["models"] if isinstance(stage["models"], list) else []:
            assert [run["error"] for run in row["runs"]] == [None], row["name"]
    for row, found in zip(recipe.rows, result["rows"]):
        ours = [cell["mean"] for cell in found["columns"].values() if cell["mean"] is not None]
        assert bool(ours) == row.runs("tiny"), row.name
        assert {name: cell["paper"] for name, cell in found["columns"].items() if name in row.printed} == dict(
            row.printed
        )
    # a trial of the machinery decides nothing
    assert {claim["verdict"] for claim in result["claims"]} <= {"undecided", "not run yet"}
    again = json.loads((pool / recipe.name / "tiny" / "result.json").read_text())
    assert again["rows"] == result["rows"]
    if recipe.name == "gmlp-table-3":  # of free matrices alone, and in percent
        shares = {row["name"]: row["columns"]["Toeplitz (%)"]["values"] for row in result["rows"]}
        assert [name for name, values in shares.items() if values] == ["gMLP without Toeplitz (App. C)"]
        assert 0 < shares["gMLP without Toeplitz (App. C)"][0] < 100


def test_rows_can_be_run_alone(tmp_path: Path) -> None:
    recipe = get_recipe("remixer-table-4")
    quiet: dict[str, Any] = {"report": False, "live": Live(Console(file=io.StringIO()))}
    result = reproduce(recipe, "tiny", out=tmp_path, only=["Remixer Base"], **quiet)
    ran = {row["name"] for row in result["rows"] if row["columns"]["Gen. EM"]["values"]}
    assert ran == {"Remixer Base", "T5.1.1 Base"}
    assert [claim["verdict"] for claim in result["claims"]] == ["undecided", "not run yet", "not run yet"]
    assert 0 < gpu_minutes(recipe, "bench", ["Remixer Base"]) < gpu_minutes(recipe, "bench")
    with pytest.raises(ValueError, match="did you mean 'Remixer Base'"):
        reproduce(recipe, "tiny", out=tmp_path, only=["Remixr Base"], **quiet)


def test_settings_change_the_sizes_of_the_models() -> None:
    recipe = get_recipe("gmlp-table-3")
    (stage,) = recipe.scale("bench").stages
    settings = {"model": {"options": {"d_model": 192, "layers": 2}}}
    models = {e.name: config_of(e, "encoder") for e in contenders_of(recipe, "bench", stage, (), settings)}
    bert, gmlp = models["BERT base + rel pos"], models["Multiplicative, Split gMLP"]
    assert (bert.d_model, bert.layers) == (192, 2)
    assert (gmlp.d_model, gmlp.layers, gmlp.heads) == (128, 6, 1)  # two thirds and three times; the row's own heads
    assert 0 < gpu_minutes(recipe, "bench", settings=settings) < gpu_minutes(recipe, "bench")


def test_sizes_stay_those_of_the_weights_that_a_stage_goes_on_from(tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"report": False, "live": Live(Console(file=io.StringIO())), "out": tmp_path}
    settings = {"model": {"options": {"layers": 2}}}
    reproduce(get_recipe("gmlp-table-4"), "tiny", only=["Transformer 6+6"], settings=settings, **quiet)
    found: dict[str, set[int]] = {}
    for file in tmp_path.glob("runs/*/config.json"):
        found.setdefault(file.parent.name.split("-seed")[0], set()).add(json.loads(file.read_text())["layers"])
    assert all(len(layers) == 1 for layers in found.values()), found  # pretrained and finetuned alike
    assert {1, 2} == {n for layers in found.values() for n in layers}  # half of 2, and 2


def test_stages_can_be_run_alone(tmp_path: Path) -> None:
    recipe = get_recipe("synthesizer-table-6")
    quiet: dict[str, Any] = {"report": False, "live": Live(Console(file=io.StringIO()))}
    result = reproduce(recipe, "tiny", out=tmp_path, parts=["profile"], **quiet)
    assert list(result["stages"]) == ["profile"]
    filled = {name for row in result["rows"] for name, cell in row["columns"].items() if cell["values"]}
    assert filled == {"Steps/Sec", "Params (M)", "FLOPS"}
    assert 0 < gpu_minutes(recipe, "bench", parts=["profile"]) < gpu_minutes(recipe, "bench")
    with pytest.raises(ValueError, match="did you mean 'profile'"):
        reproduce(recipe, "tiny", out=tmp_path, parts=["profil"], **quiet)
    with pytest.raises(ValueError, match="sst2 goes on from mlm: name both"):
        reproduce(get_recipe("gmlp-table-4"), "bench", out=tmp_path, parts=["sst2"], **quiet)


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = get_recipe("remixer-table-1")
    quiet: dict[str, Any] = {"report": False, "live": Live(Console(file=io.StringIO())), "out": tmp_path}
    first = reproduce(recipe, "tiny", **quiet)
    measured: list[str] = []
    again = tokenmix.compare.profile.profile

    def watched(config: Any, **settings: Any) -> dict[str, Any]:
        measured.append(config.layer)
        return again(config, **settings)

    monkeypatch.setattr(tokenmix.compare.profile, "profile", watched)
    assert reproduce(recipe, "tiny", **quiet)["rows"] == first["rows"]
    assert measured == []
    file = tmp_path / "remixer-table-1" / "tiny" / "profile" / "remixer-base.json"
    file.write_text(file.read_text().replace('"d_model": 16', '"d_model": 24'))  # of another model
    reproduce(recipe, "tiny", **quiet)
    assert len(measured) == 1
    assert "remix" in measured[0]


def test_a_part_completes_what_was_run_before(tmp_path: Path) -> None:
    recipe = get_recipe("synthesizer-table-6")
    quiet: dict[str, Any] = {"report": False, "live": Live(Console(file=io.StringIO())), "out": tmp_path}
    first = reproduce(recipe, "tiny", parts=["profile"], **quiet)
    both = reproduce(recipe, "tiny", parts=["c4"], only=["Synthesizer (R)"], **quiet)
    assert set(both["stages"]) == {"c4", "profile"}
    cells = {row["name"]: {name for name, cell in row["columns"].items() if cell["values"]} for row in both["rows"]}
    assert cells["Synthesizer (R)"] == {"Log PPL", "Steps/Sec", "Params (M)", "FLOPS"}
    assert cells["Dynamic Conv"] == {"Steps/Sec", "Params (M)", "FLOPS"}
    assert [r["columns"]["FLOPS"] for r in both["rows"]] == [r["columns"]["FLOPS"] for r in first["rows"]]


def test_seeds_that_a_result_has_are_not_run_again(tmp_path: Path) -> None:
    recipe = get_recipe("remixer-table-4")
    quiet: dict[str, Any] = {"report": False, "live": Live(Console(file=io.StringIO())), "seeds": 2, "jobs": 1}
    first = reproduce(recipe, "tiny", only=["Remixer Base"], out=tmp_path / "there", **quiet)
    file = tmp_path / "here" / "remixer-table-4" / "tiny" / "result.json"
    file.parent.mkdir(parents=True)
    cut = json.loads(json.dumps(first))
    lost = cut["stages"]["cogs"]["models"][1]["runs"][1]
    cut["stages"]["cogs"]["models"][1]["runs"][1] = lost | {"status": "unfinished", "metrics": {}}
    cell = {row["name"]: row for row in cut["rows"]}["Remixer Base"]["columns"]["Gen. EM"]
    cell["values"] = [cell["values"][0], None]
    file.write_text(json.dumps(cut))
    whole = reproduce(recipe, "tiny", only=["Mixer EncDec, Base", "Remixer Base"], out=tmp_path / "here", **quiet)
    ran = sorted(folder.name.rsplit("-", 1)[0] for folder in (tmp_path / "here" / "runs").iterdir())
    assert ran == ["mixer-encdec-base-seed0", "mixer-encdec-base-seed1", "remixer-base-seed1"]
    values = {row["name"]: row["columns"]["Gen. EM"]["values"] for row in whole["rows"]}
    before = {row["name"]: row["columns"]["Gen. EM"]["values"] for row in first["rows"]}
    assert values["T5.1.1 Base"] == before["T5.1.1 Base"]
    assert values["Remixer Base"] == before["Remixer Base"]  # the seed that was run again is the same run
    assert len(values["Mixer EncDec, Base"]) == 2
    assert "not run yet" not in {claim["verdict"] for claim in whole["claims"][:1]}


def test_what_is_finished_can_be_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained; what is missing of a row stays open, since rows are paired by seed."""
    recipe = get_recipe("remixer-table-4")
    options: dict[str, Any] = {"out": tmp_path, "seeds": 3, "only": ["Remixer Base"], "report": False}
    options["live"] = Live(Console(file=io.StringIO()))
    whole = reproduce(recipe, "tiny", **options)
    for folder in (*tmp_path.glob("runs/t5-1-1-base-seed2-*"), *tmp_path.glob("runs/remixer-base-seed1-*")):
        (folder / "trained.json").unlink()
    monkeypatch.setattr(tokenmix.training, "train", lambda *_, **__: pytest.fail("a run was trained"))
    (tmp_path / "remixer-table-4" / "tiny" / "result.json").unlink()
    found = reproduce(recipe, "tiny", collect=True, **options)
    for name, missing in (("T5.1.1 Base", 2), ("Remixer Base", 1)):
        before, after = ({row["name"]: row for row in r["rows"]}[name]["columns"]["Gen. EM"] for r in (whole, found))
        assert after["values"] == [None if seed == missing else v for seed, v in enumerate(before["values"])]
        assert after["mean"] == pytest.approx(sum(v for v in after["values"] if v is not None) / 2)
    runs = {row["name"]: [run["status"] for run in row["runs"]] for row in found["stages"]["cogs"]["models"]}
    assert runs["Remixer Base"] == ["done", "unfinished", "done"]
    with pytest.raises(ValueError, match="no finished run of remixer-table-4 at tiny"):  # and no result is overwritten
        reproduce(recipe, "tiny", collect=True, **{**options, "out": tmp_path / "elsewhere"})
    assert not (tmp_path / "elsewhere" / "remixer-table-4" / "tiny" / "result.json").exists()


def test_missing_seeds_are_taken_from_an_earlier_result_of_the_same_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = get_recipe("remixer-table-4")
    options: dict[str, Any] = {"out": tmp_path, "seeds": 3, "only": ["Remixer Base"], "report": False}
    options["live"] = Live(Console(file=io.StringIO()))
    earlier = reproduce(recipe, "tiny", **options)
    next(tmp_path.glob("runs/remixer-base-seed1-*/trained.json")).unlink()
    for row in earlier["rows"]:  # numbers that can be told apart
        cell = row["columns"]["Gen. EM"]
        cell["values"] = [10.0 * (seed + 1) for seed, _ in enumerate(cell["values"])]
    for row in earlier["stages"]["cogs"]["models"]:
        for run in row["runs"]:
            run["metrics"]["exact_match"] = 10.0 * (run["seed"] + 1)
    path = tmp_path / "remixer-table-4" / "tiny" / "result.json"

    def collected(**changed: Any) -> tuple[list[float | None], list[str]]:
        found = json.loads(json.dumps(earlier))
        for place, value in changed.items():
            *inner, last = place.split("__")
            part = found
            for name in inner:
                part = part[name]
            part[last] = value
        path.write_text(json.dumps(found))
        result = reproduce(recipe, "tiny", collect=True, **options)
        (row,) = (row for row in result["rows"] if row["name"] == "Remixer Base")
        (stage,) = (row for row in result["stages"]["cogs"]["models"] if row["name"] == "Remixer Base")
        return row["columns"]["Gen. EM"]["values"], [run["status"] for run in stage["runs"]]

    mine = collected()
    assert mine[0][1] == 20.0
    assert mine[0][0] != 10.0
    assert mine[1] == ["done", "done", "done"]
    model = {**earlier["stages"]["cogs"]["asked"]["models"]["Remixer Base"], "layer": "dot | geglu"}
    others = (
        {"scale": "bench"},
        {"changed": {"budget": {"steps": 3}}},
        {"stages__cogs__asked__stage__settings__budget__steps": 3},
        {"stages__cogs__asked__stage__beams": 4},
        {"stages__cogs__asked__models": {**earlier["stages"]["cogs"]["asked"]["models"], "Remixer Base": model}},
    )
    for other in others:
        caplog.clear()
        assert collected(**other) == ([mine[0][0], None, mine[0][2]], ["done", "unfinished", "done"]), other
        assert "earlier result" in caplog.text
    path.write_text("{}")
    with pytest.raises(ValueError, match="no result of `tokenmix reproduce`"):
        reproduce(recipe, "tiny", collect=True, **options)


def test_the_papers_sizes_are_only_counted_without_a_gpu(pool: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = reproduce(get_recipe("remixer-table-1"), "bench", out=pool, report=False)
    assert [claim["verdict"] for claim in result["claims"]] == ["holds", "not run yet", "not run yet"]


def test_ledger_has_a_row_for_every_claim_and_says_what_was_not_run(tmp_path: Path) -> None:
    found = sections({})
    assert [len(section["claims"]) for section in found] == [len(recipe.claims) for recipe in RECIPES.values()]
    assert {claim["verdict"] for section in found for claim in section["claims"]} == {"not run yet"}
    page = ledger(tmp_path)
    for section, recipe in zip(found, RECIPES.values(), strict=True):
        assert section["minutes"] == gpu_minutes(recipe, "bench")
        for claim in recipe.claims:
            assert f"\n| {claim.text} | {claim.printed} |  | **not run yet** |" in page
    assert "\n    tokenmix reproduce remixer-table-4 --scale bench\n" in page
    assert "What is missing takes about 11 GPU minutes." in page


@pytest.mark.parametrize(
    "value", [1e-5, 1e16, 0.0001, 3, True, None, "rms", "1e-5", "null", "two words", "it's", '"', "$HOME | `x`", [1e-8]]
)
def test_a_command_says_the_settings_that_were_changed(value: Any) -> None:
    changed = {"model": {"options": {"x": value}}, "budget": {"steps": 7}}
    words = shlex.split(get_recipe("gmlp-table-2").command("bench", changed, seeds=5))
    assert merge(*(assignment(text) for name, text in pairwise(words) if name == "--set")) == changed
    assert words[-2:] == ["--seeds", "5"]


def test_a_result_holds_no_path_of_the_machine(tmp_path: Path) -> None:
    recipe = get_recipe("gmlp-table-2")
    result = reproduce(recipe, "tiny", out=tmp_path, seeds=1, data=str(tmp_path), only=["gMLP-S"], report=False)
    assert result["stages"]
    assert str(tmp_path) not in json.dumps(result)


def test_time_in_a_recipe_is_its_estimate() -> None:
    for recipe in RECIPES.values():
        if said := re.search(r"about (\d+)\s+minutes", recipe.doc):
            assert abs(int(said[1]) - gpu_minutes(recipe, "bench")) <= 0.6, recipe.name


def test_what_is_known_needs_no_more_gpu_minutes() -> None:
    recipe = get_recipe("remixer-table-5")
    rows = [row.name for row in recipe.rows if row.runs("bench")]
    everything = {name: {"COGS Gen. EM": [80.0] * 3, "SNLI": [60.0] * 3} for name in rows}
    assert gpu_minutes(recipe, "bench", known=everything) == 0
    one_seed = {**everything, rows[0]: {"COGS Gen. EM": [80.0, None, 80.0], "SNLI": [60.0] * 3}}
    one_row = {name: found for name, found in everything.items() if name != rows[0]}
    assert 0 < gpu_minutes(recipe, "bench", known=one_seed) < gpu_minutes(recipe, "bench", known=one_row)
    ablations = get_recipe("gmlp-table-3")  # a column that one row alone has is missing nowhere else
    rows = [row.name for row in ablations.rows if row.runs("bench")]
    assert gpu_minutes(ablations, "bench", known={name: {"Perplexity": [20.0] * 3} for name in rows}) == 0
    pretrained = get_recipe("gmlp-table-6")  # finetuning that is missing needs the weights again
    rows = [row.name for row in pretrained.rows if row.runs("bench")]
    columns = {stage.name: stage.columns for stage in pretrained.scale("bench").stages}
    known = {name: dict.fromkeys(columns["mlm"], [4.0] * 3) for name in rows}
    assert gpu_minutes(pretrained, "bench", known=known) == gpu_minutes(pretrained, "bench")


def test_ledger_judges_committed_numbers(tmp_path: Path) -> None:
    recipe = get_recipe("remixer-table-4")
    values = {"Remixer Base": [80.1, 80.4, 80.2], "T5.1.1 Base": [77.0, 77.3, 77.2]}
    result = {
        "recipe": recipe.name, "scale": "bench", "seeds": 3, "changed": {}, "devices": ["NVIDIA H200"],
        "rows": [{"name": name, "columns": {"Gen. EM": {"values": v}}} for name, v in values.items()],
    }  # fmt: skip
    (tmp_path / "remixer-table-4.json").write_text(json.dumps(result))
    mine = next(found for found in sections({"remixer-table-4": result}) if found["place"] == recipe.place)
    assert [claim["verdict"] for claim in mine["claims"]] == ["holds", "not run yet", "not run yet"]
    assert "3 seeds" in mine["scale and its limits"]
    assert "80.23 ± 0.15" in mine["claims"][0]["ours"]
    assert "| **holds** | 1 | 0 | 0 | 0 | 1 |" in ledger(tmp_path)
    changed = result | {"changed": {"budget": {"steps": 100}, "model": {"options": {"norm": "rms"}}}}
    again = next(found for found in sections({"remixer-table-4": changed}) if found["place"] == recipe.place)
    assert "with the settings of the command" in again["scale and its limits"]
    assert again["again with"].endswith(" --set budget.steps=100 --set 'model.options.norm=\"rms\"'")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad.json is no result"):
        ledger(tmp_path)


def test_families_of_growing_size_are_drawn_with_their_power_laws() -> None:
    """Table 4's printed numbers: −0.20 for Transformers and −0.23 for gMLPs."""
    recipe = get_recipe("gmlp-figure-5")
    rows = [
        {
            "name": row.name,
            "columns": {n: {"mean": row.printed[n], "deviation": 0.1} for n in ("Params (M)", "Perplexity")},
        }
        for row in recipe.rows
    ]
    drawn = scaling_figure(recipe, {"rows": rows})
    assert drawn.title == "perplexity over parameters (M): Transformer ~ size^−0.20, gMLP ~ size^−0.23"
    assert sum(isinstance(shape, Mark) and shape.tip is not None for shape in drawn.shapes) == len(rows)
    rows[0]["columns"]["Perplexity"]["mean"] = None
    assert scaling_figure(recipe, {"rows": rows}) is None
    assert scaling_figure(get_recipe("gmlp-table-3"), {"rows": []}) is None
