"""Models as a user writes them, run folders, and equal sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmix.compare.match import match
from tokenmix.compare.plan import (
    ALIASES,
    Judging,
    check_folder,
    check_models,
    check_task,
    contender,
    contenders,
    run_key,
    specs,
)
from tokenmix.mixers import parse
from tokenmix.models import TokenmixConfig
from tokenmix.models.counting import count_parameters, forward_flops
from tokenmix.models.create import plain

SMALL = {"data": {"task": "scan"}, "budget": {"steps": 2}, "model": {"options": {"d_model": 32, "heads": 2}}}


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_every_short_name_is_a_layer(name: str) -> None:
    assert contender(name).model["layer"]


def test_names_expressions_and_pairs() -> None:
    assert contender("t5-v1.1-tiny").model == {"name": "t5-v1.1-tiny"}
    assert contender("random + dot | geglu").model == {"layer": "random + dot | geglu"}
    assert contender("gmlp ; dot | geglu").model == {"layer": "gmlp", "options": {"decoder_layer": "dot | geglu"}}
    mine = contender("my model=dot | remix(alpha=0.3)")
    assert (mine.name, mine.model["layer"]) == ("my model", "dot | remix(alpha=0.3)")
    assert contender("dot | remix(alpha=0.3)").name == "dot | remix(alpha=0.3)"
    assert contender("Synthesizer (R+V)=random + dot | geglu").name == "Synthesizer (R+V)"


@pytest.mark.parametrize(
    "text, message",
    [
        ("trnsformer", "did you mean 'transformer'"),
        ("random | gegl", "did you mean 'geglu'"),
        ("remix(alfa=1)", "alfa"),
    ],
)
def test_misspelt_models_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        contender(text)


def test_two_models_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="two models are called 'gmlp'"):
        contenders(["gmlp", "gmlp"])
    with pytest.raises(ValueError, match="no models"):
        contenders([])


def test_models_may_be_text_objects_and_contenders_side_by_side() -> None:
    found = contenders([contender("mine=gmlp"), "transformer", parse("random | geglu")])
    assert [entry.name for entry in found] == ["mine", "transformer", "random | geglu"]
    with pytest.raises(ValueError, match="models are a list; got 'transformer' alone"):
        contenders("transformer")
    with pytest.raises(ValueError, match="a model is a preset's name"):
        contenders([3])  # type: ignore[list-item]


def test_models_that_cannot_be_built_are_named_before_training() -> None:
    with pytest.raises(ValueError, match=r"model 'linformer': .*causal|model 'linformer': .*decoder"):
        check_models(contenders(["transformer", "linformer"]), "seq2seq", {"d_model": 32, "heads": 2})


def test_runs_are_keyed_by_what_decides_their_result() -> None:
    models = contenders(["transformer", "random | geglu"])
    first = specs(models, SMALL, [0, 1], "a")
    again = specs(models, SMALL, [0, 1], "b", threads=2)
    assert [Path(s.folder).name for s in first] == [Path(s.folder).name for s in again]
    assert len({s.folder for s in first}) == 4
    other = specs(models, {**SMALL, "budget": {"steps": 3}}, [0], "a")
    assert not {Path(s.folder).name for s in other} & {Path(s.folder).name for s in first}
    assert run_key({"seed": 0, "out": "x"}) == run_key({"seed": 0, "out": "y"})
    # a setting of a later version, at its default, leaves a run where it was
    assert run_key({"device": {"precision": "bf16", "skip_padding": False}}) == run_key(
        {"device": {"precision": "bf16"}}
    )
    assert run_key({"device": {"precision": "bf16"}}) != run_key({"device": {"precision": "fp32"}})


def test_every_model_gets_the_same_settings_but_for_its_own() -> None:
    runs = specs(contenders(["transformer", "gmlp-encoder"]), SMALL, [5], "a")
    first, second = (dict(run.config) for run in runs)
    for config in (first, second):
        config.pop("out")
        config.pop("model")
    assert first == second
    assert first["seed"] == 5


@pytest.mark.parametrize("rule", ["params", "flops"])
@pytest.mark.parametrize("layer", ["random | geglu", "gmlp", "dot | remix(heads=4)", "token_mlp(hidden=16) | mlp"])
def test_matching_brings_models_to_the_baselines_size(layer: str, rule: str) -> None:
    def config(expression: str) -> TokenmixConfig:
        sizes = {"d_model": 64, "d_ff": 128, "heads": 4, "layers": 2, "max_length": 32, "vocab_size": 100}
        return TokenmixConfig(body="encoder", layer=expression, **sizes)

    baseline = config("dot | mlp")
    found = match(baseline, {"it": config(layer)}, rule)["it"]
    made = TokenmixConfig(**{**plain(config(layer)), **found.options})
    size = (lambda c: count_parameters(c).total) if rule == "params" else (lambda c: forward_flops(c).total)
    assert size(made) == found.value
    assert found.ratio == pytest.approx(1.0, abs=0.06)


def test_unknown_rule_is_an_error() -> None:
    config = TokenmixConfig(body="encoder", layer="gmlp", d_model=16, heads=1)
    with pytest.raises(ValueError, match="Known: flops, none, params"):
        match(config, {}, "size")


def test_mistakes_about_the_task_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMIX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="did you mean 'scan'"):
        check_task({"data": {"task": "scann"}}, Judging())
    with pytest.raises(OSError, match="data not found"):
        check_task({"data": {"task": "cogs"}}, Judging())
    with pytest.raises(ValueError, match=r"metric of task 'scan' 'bleu'.*exact_match"):
        check_task({"data": {"task": "scan"}}, Judging(metric="bleu"))
    with pytest.raises(ValueError, match="split of task 'scan'"):
        check_task({"data": {"task": "scan"}}, Judging(split="dev"))
    assert check_task({"data": {"task": "scan"}}, Judging(metric="exact_match")) is not None


def test_unwritable_folder_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write to .*choose another folder with --out"):
        check_folder(tmp_path / "file" / "below")
