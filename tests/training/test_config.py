"""One strict configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenmix.cli import app, load_commands
from tokenmix.training import RunConfig, list_training_presets, training_preset
from tokenmix.training.config import assignment, merge, read_layer


@pytest.mark.parametrize(
    "values, message",
    [
        ({"optimiser": {}}, "unknown key in the configuration 'optimiser'; did you mean 'optimizer'"),
        ({"optimizer": {"clipp": 1}}, "unknown key in optimizer 'clipp'; did you mean 'clip'"),
        ({"optimizer": {"name": "adam"}}, "did you mean 'adamw'"),
        ({"budget": {"steps": "many"}}, "budget.steps must be a whole number; got 'many'"),
        ({"budget": {"steps": -1}}, "budget.steps must be positive"),
        ({"data": "scan"}, "data holds 'scan'; expected keys such as task"),
        ({"device": {"compile": "yes"}}, "device.compile must be true or false"),
        ({"preset": "gmlp-mml"}, "did you mean 'gmlp-mlm'"),
        ({"budget": {"minutes": float("nan")}}, "budget.minutes must be positive; got nan"),
        ({"data": {"batch_size": 0}}, "data.batch_size must be at least 1; got 0"),
        ({"data": {"max_target": 0}}, "data.max_target must be at least 1; got 0"),
        ({"data": {"limit": -1}}, "data.limit must be at least 1; got -1"),
        ({"data": {"objective": "masked"}}, "unknown value of data.objective 'masked'; did you mean 'masked_lm'"),
        ({"device": {"accumulate": 0}}, "device.accumulate must be at least 1; got 0"),
        ({"device": {"accumulate": 9}, "data": {"batch_size": 8}}, "accumulate=9 micro-batches of data.batch_size=8"),
        ({"device": {"threads": -2}}, "device.threads must be at least 1; got -2"),
        ({"schedule": {"warmup": -3}}, "schedule.warmup must be at least 0; got -3"),
        ({"validation": {"patience": -1}}, "validation.patience must be at least 1; got -1"),
        ({"seed": 10**23}, "seed must be below 2⁶³"),
        ({"seed": 10**400}, "seed must be a whole number"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr must be at least 0; got -1"),
        ({"optimizer": {"lr": "nan"}}, "optimizer.lr must be at least 0; got nan"),
        ({"optimizer": {"lr": "inf"}}, "optimizer.lr must be a finite number; got inf"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, r"optimizer.betas must be two numbers in \[0, 1\); got \[0.9, 1.0\]"),
        ({"optimizer": {"betas": [-0.1, 0.9]}}, r"optimizer.betas must be two numbers in \[0, 1\)"),
        ({"budget": {"steps": "inf"}}, "budget.steps must be a whole number; got 'inf'"),
    ],
)
def test_mistakes_are_named(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.of(values)


def test_file_and_options_make_one_configuration_that_is_written_whole(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("preset: gmlp-mlm\noptimizer: {lr: 1e-3}\nmodel: {name: gmlp-tiny}\n")
    config = RunConfig.read(tmp_path / "a.yaml", {"budget": {"steps": 7}}, assignment("optimizer.betas=[0.9, 0.95]"))
    assert (config.optimizer.lr, config.optimizer.eps, config.optimizer.betas) == (1e-3, 1e-6, (0.9, 0.95))
    assert (config.budget.steps, config.schedule.warmup, config.data.task) == (7, 10_000, "c4")
    config.write(tmp_path / "b.yaml")
    assert RunConfig.read(tmp_path / "b.yaml") == config


@pytest.mark.parametrize("name", list_training_presets())
def test_every_training_preset_is_a_valid_configuration(name: str) -> None:
    config = RunConfig.of({"preset": name})
    assert merge(config.to_dict(), training_preset(name)) == config.to_dict()


def test_presets_hold_the_papers_numbers() -> None:
    imagenet = RunConfig.of({"preset": "gmlp-imagenet"})
    assert (imagenet.data.batch_size, imagenet.budget.epochs, imagenet.optimizer.weight_decay) == (4096, 300, 0.05)
    assert RunConfig.of({"preset": "synthesizer-cotrain"}).model.freeze_embeddings
    cogs = RunConfig.of({"preset": "remixer-cogs"})
    assert (cogs.optimizer.name, cogs.optimizer.lr, cogs.budget.steps, cogs.schedule.name) == (
        "adafactor",
        1e-3,
        50_000,
        "constant",
    )


def test_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="holds list; expected keys such as model"):
        RunConfig.read(tmp_path / "a.yaml")
    with pytest.raises(ValueError, match="expected KEY=VALUE"):
        assignment("optimizer.lr")
    with pytest.raises(ValueError, match=r"cannot read the value '\[0.9' \(expected .*give JSON or YAML"):
        assignment("optimizer.betas=[0.9")
    for path in (tmp_path / "nope.yaml", tmp_path):
        with pytest.raises(ValueError, match=rf"cannot read the configuration {path} \(.*give a YAML or JSON file"):
            RunConfig.read(path)


def test_set_reaches_none_and_stands_above_options(tmp_path: Path) -> None:
    assert assignment("validation.examples=null") == {"validation": {"examples": None}}
    assert RunConfig.of(assignment("validation.examples=null")).validation.examples is None
    command = [
        "train", "--model", "remixer-tiny", "--task", "scan", "--limit", "32", "--batch-size", "4", "--out",
        str(tmp_path / "run"), "--steps", "5", "--set", "budget.steps=2", "--set", "validation.examples=4",
        "--set", "validation.metric=false", "--set", "tensorboard=false", "--device", "cpu",
    ]  # fmt: skip
    load_commands()
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert RunConfig.of(read_layer(tmp_path / "run" / "config.yaml")).budget.steps == 2
