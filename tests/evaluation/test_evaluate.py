"""`tokenmix train`, `evaluate` and `predict` from end to end."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tokenmix.cli import app, load_commands
from tokenmix.data.mixtures import MIXTURES
from tokenmix.data.task import get_task
from tokenmix.data.tokenizers import train_tokenizer
from tokenmix.evaluation.answer import Answerer
from tokenmix.evaluation.evaluate import evaluate, open_checkpoint
from tokenmix.evaluation.predictions import by_length, generate_texts
from tokenmix.generation import generate
from tokenmix.models import create_model
from tokenmix.training import train
from tokenmix.training.config import read_layer
from tokenmix.training.features import features_for

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
        "--set", "validation.every=0",
    )  # fmt: skip
    assert "step 2/6  loss" in made.stderr
    assert "validation at step 6" in made.stderr
    assert f"model and tokenizer   {folder}" in made.stderr
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "jump", "--batch-size", "0"],
        ["predict", "jump", "--max-tokens", "0"],
        ["predict", "jump", "--beams", "0"],
        ["evaluate", "--limit", "0"],
        ["evaluate", "--batch-size", "-1"],
        ["predict", "jump", "--seed", str(2**63)],
        ["evaluate", "--predictions", "/"],
    ],
)
def test_impossible_numbers_are_refused(run: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [arguments[0], str(run), *arguments[1:]])
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}'" in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_devices_and_weights_that_cannot_be_used(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU is visible; take --device cpu"):
        open_checkpoint(run, "cuda")
    with pytest.raises(ValueError, match="unknown device 'foo'"):
        open_checkpoint(run, "foo")
    with pytest.raises(ValueError, match="unknown precision 'fp8'"):
        open_checkpoint(run, "cpu", "fp8")
    shutil.copytree(run, tmp_path / "half")
    weights = tmp_path / "half" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"the weights in .* are damaged .*take a checkpoint of the run"):
        open_checkpoint(tmp_path / "half", "cpu")


def test_own_files_without_a_validation_file_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"q": f"say {n}", "a": str(n)} for n in range(20)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = f"file:{tmp_path / 'own.jsonl'}?input=q&target=a"
    command("train", "--layer", "dot | geglu", "--task", task, "--steps", 2, "--out", tmp_path / "run", *SIZES,
            "--device", "cpu", "--tokenizer", "word")  # fmt: skip
    assert "validating on what it is trained on; add &validation=FILE" in caplog.text
    (result,) = evaluate([tmp_path / "run"], [task])
    assert result.note.endswith("the training data")


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
    with pytest.raises(ValueError, match="tasks are a list; got 'scan' alone"):
        list(evaluate([run], "scan"))
    with pytest.raises(ValueError, match="at least 1; got 4 and 0"):
        list(evaluate([run], ["scan"], batch_size=4, limit=0))
    answer = Answerer(run, device="cpu")
    assert answer([]) == []
    with pytest.raises(ValueError, match=r"give \[text\]"):
        answer("jump twice")
    with pytest.raises(ValueError, match=r"RunConfig.of"):
        train({"out": str(tmp_path)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown split"):
        list(evaluate([run], ["scan"], "tset"))
    with pytest.raises(ValueError, match="not both"):
        CliRunner().invoke(app, ["predict", str(run), "x", "--file", "y"], catch_exceptions=False)
    with pytest.raises(ValueError, match="give --out"):
        CliRunner().invoke(app, ["train", "--model", "remixer-tiny"], catch_exceptions=False)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_answers_in_bf16_are_those_of_narrow_weights(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(["a b c d e f g h"], kind="word", vocab_size=20)
    model = create_model("remixer-tiny", vocab_size=len(tokenizer)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.to(device)
    maker = features_for("text", model.config, tokenizer, get_task("scan"))
    texts = ["a b c", "h g f e d"]
    given = tokenizer(texts, return_tensors="pt", padding=True).to(device)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    tokens = generate(narrow, given.input_ids, given.attention_mask, max_new_tokens=9).tokens
    answers = generate_texts(model, maker, texts, max_new_tokens=9, precision="bf16")
    assert answers == tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert len(set(answers)) == 2
    assert next(model.parameters()).dtype == torch.float32
    used: list[Any] = []  # a model that is narrow already is used as it is, with the graphs that were captured of it
    monkeypatch.setattr(
        "tokenmix.evaluation.predictions.generate", lambda m, *a, **o: used.append(m) or generate(m, *a, **o).tokens
    )
    assert generate_texts(narrow, maker, texts, max_new_tokens=9, precision="bf16") == answers
    assert used == [narrow]


def test_batches_go_by_length() -> None:
    assert by_length([1, 5, 3, 4], 2) == [[1, 3], [2, 0]]


# --------------------------------------------------------------------------------------------------- a run of one's own


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a file that lies in its own data folder: RUN/../data."""
    folder = tmp_path_factory.mktemp("classifier")
    (folder / "data" / "cogs").mkdir(parents=True)
    rows = [{"text": f"{word} film {n}", "label": word} for n in range(8) for word in ("bad", "good")]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command(
        "train", "--layer", "dot | mlp", "--body", "encoder", "--task", f"file:{folder / 'own.jsonl'}?text=text&label=label",
        "--steps", 2, "--out", folder / "run", *SIZES, "--device", "cpu", "--tokenizer", "word", "--set", "tensorboard=false",
    )  # fmt: skip
    return folder / "run"


def test_the_target_of_the_first_class_is_written(classifier: Path, tmp_path: Path) -> None:
    command("evaluate", classifier, "--predictions", tmp_path / "p.jsonl", "--device", "cpu", "--limit", 4)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [(row["input"], row["target"]) for row in rows[:2]] == [(["bad film 0"], 0), (["good film 0"], 1)]


def test_a_classifier_answers_when_its_training_file_has_moved(classifier: Path, tmp_path: Path) -> None:
    settings = (classifier / "config.yaml").read_text()
    shutil.copytree(classifier, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(settings.replace("own.jsonl", "moved.jsonl"))
    (answer,) = command("predict", tmp_path / "run", "good film", "--device", "cpu").stdout.splitlines()
    assert answer in ("bad", "good")
    with pytest.raises(FileNotFoundError, match="reads its label names from there"):
        command("evaluate", tmp_path / "run", "--device", "cpu")


def test_a_run_is_evaluated_on_the_data_it_was_trained_on(run: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "cogs").mkdir(parents=True)
    for name in ("train", "dev", "test", "gen"):
        (tmp_path / "data" / "cogs" / f"{name}.tsv").write_text("A rose .\trose ( x )\tin_distribution\n" * 3)
    shutil.copytree(run, tmp_path / "run")
    config = read_layer(tmp_path / "run" / "config.yaml")
    config["data"] |= {"task": "cogs", "folder": str(tmp_path / "data")}
    (tmp_path / "run" / "config.yaml").write_text(json.dumps(config))
    (result,) = json.loads(command("evaluate", tmp_path / "run", "--json", "--device", "cpu").stdout)
    assert (result["task"], result["examples"]) == ("cogs", 3)
    (tmp_path / "data" / "cogs" / "gen.tsv").write_text("")
    with pytest.raises(ValueError, match=r"task 'cogs', split 'gen': no examples in .*gen\.tsv"):
        command("evaluate", tmp_path / "run", "--device", "cpu")


def test_parts_of_a_mixture_that_are_not_here_are_left_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(MIXTURES, "some", {"cogs": 1, "scan": 1})
    options = ["--data", tmp_path, "--limit", 2, "--device", "cpu"]
    (result,) = json.loads(command("evaluate", run, "--task", "some", "--json", *options).stdout)
    assert result["task"] == "scan"
    assert "mixture some goes without cogs" in caplog.text
    assert [r.task for r in evaluate([run], ["some"], data=tmp_path, limit=2, device="cpu")] == ["scan"]
    with pytest.raises(FileNotFoundError, match="data not found"):
        command("evaluate", run, "--task", "cogs", *options)
    monkeypatch.setitem(MIXTURES, "some", {"cogs": 1})
    with pytest.raises(ValueError, match="none of the tasks has data here"):
        command("evaluate", run, "--task", "some", *options)


def test_a_run_on_shards_asks_for_a_task_to_evaluate(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = read_layer(run / "config.yaml")
    config["data"]["task"] = f"shards:{tmp_path}"
    (tmp_path / "run" / "config.yaml").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"holds token ids to train on.*--task file:text\.txt"):
        command("evaluate", tmp_path / "run", "--device", "cpu")
    assert len(command("predict", tmp_path / "run", "jump", "--device", "cpu").stdout.splitlines()) == 1


@pytest.mark.parametrize("way", ["stdin", "file"])
def test_lines_that_are_no_utf8_are_an_error(run: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "latin1.txt").write_bytes(b"jump\ncaf\xe9\n")
    options = {"stdin": {"input": b"jump\ncaf\xe9\n"}, "file": {}}[way]
    asked = [
        "predict",
        str(run),
        "--device",
        "cpu",
        *(["--file", str(tmp_path / "latin1.txt")] if way == "file" else []),
    ]
    result = CliRunner().invoke(app, asked, **options)
    source = {"stdin": "standard input", "file": f"{tmp_path}/latin1.txt"}[way]
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith(f"{source} is not UTF-8 text (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "jump", "--temperature", "0.5"], "temperature have no effect.*add --sample"),
        (["predict", "jump", "--top-p", "0.5"], "top_p have no effect.*add --sample"),
        (
            ["predict", "jump", "--beams", "2", "--length-penalty", "nan"],
            "length_penalty must be a finite number; got nan",
        ),
        (["evaluate", "--beams", "2", "--length-penalty", "inf"], "length_penalty must be a finite number; got inf"),
        (["predict", "jump", "--length-penalty", "0.6"], "length_penalty=0.6 ranks beams, and there is one"),
        (["predict", "--file", "{tmp}"], "is a folder; name its text files"),
        (["predict", "--file", "{tmp}/none.txt"], r"text file .*none\.txt does not exist"),
        (["evaluate", "--predictions", "{tmp}/none/p.jsonl"], r"there is no folder .*none; make it first"),
    ],
)
def test_options_that_cannot_be_met_are_answered_at_once(
    run: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    command, *rest = (argument.format(tmp=tmp_path) for argument in arguments)
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, [command, str(run), *rest, "--device", "cpu"], catch_exceptions=False)
