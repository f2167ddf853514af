"""A run from start to end: its folder, its options, every form of task."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import same, tiny, weights

from tokenmix.models import TokenmixConfig, TokenmixForConditionalGeneration
from tokenmix.training import Callback, RunConfig, train
from tokenmix.training.build import build
from tokenmix.training.loop import Budget, Counters
from tokenmix.training.run import headline


class Listener(Callback):
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.validations: list[dict[str, Any]] = []

    def on_start(self, run: dict[str, Any]) -> None:
        self.heard.append(f"start {run['steps']}")

    def on_step(self, step: int, fraction: float) -> None:
        self.heard.append("step")

    def on_log(self, record: dict[str, Any]) -> None:
        self.heard.append(f"log {record['step']}")

    def on_validation(self, record: dict[str, Any]) -> None:
        self.validations.append(record)

    def on_end(self, result: Any) -> None:
        self.heard.append(result.status)


def test_a_run_folder_holds_everything_and_opens_with_from_pretrained(tmp_path: Path) -> None:
    listener = Listener()
    run = tmp_path / "run"
    result = train(tiny(run, validation__metric=True, validation__every=6, tensorboard=True), callbacks=[listener])
    assert listener.heard[0] == "start 12"
    assert listener.heard.count("step") == 12
    assert listener.heard[-1] == "finished"
    assert [v["step"] for v in listener.validations] == [6, 12]
    assert set(result.metrics) == {"exact_match", "loss"}
    model = TokenmixForConditionalGeneration.from_pretrained(run)
    assert same(dict(model.state_dict()), weights(run))
    from transformers import AutoTokenizer

    assert len(AutoTokenizer.from_pretrained(run)) == model.config.vocab_size
    assert RunConfig.read(run / "config.yaml") == tiny(
        run, validation__metric=True, validation__every=6, tensorboard=True
    )
    record = json.loads((run / "environment.json").read_text())
    assert {"versions", "device", "seed", "git", "threads", "command"} <= set(record)
    kinds = [json.loads(line)["kind"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert kinds == ["train", "validation", "train", "train", "validation"]
    logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert {"loss", "lr", "examples/s", "tokens/s", "mfu", "memory_gb", "seconds_left"} <= set(logged)
    assert list((run / "tensorboard").iterdir())
    assert "tokenmix predict" in result.summary()


def test_micro_batches_equal_one_batch(tmp_path: Path) -> None:
    """Mean over all tokens of the batch, not the mean of means: 8 rows as 1, 2 and 8 micro-batches."""
    settings = {"model__options__dropout": 0.0, "optimizer__eps": 1e-4, "budget__steps": 6}
    for k in (1, 2, 8):
        train(tiny(tmp_path / str(k), **settings, device__accumulate=k))
    one = weights(tmp_path / "1")
    for k in ("2", "8"):
        many = weights(tmp_path / k)
        assert max(float((one[n] - many[n]).abs().max()) for n in one) <= 1e-5


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny(tmp_path / name, seed=seed))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_frozen_embeddings_stay(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", model__freeze_embeddings=True)
    before = {n: p.clone() for n, p in build(config).model.named_parameters()}
    train(config)
    after = weights(tmp_path / "run")
    changed = {n for n in after if not torch.equal(after[n], before[n])}
    assert not changed & {"model.embed.tokens.weight", "lm_head.weight"}
    assert changed


@pytest.mark.parametrize("budget", [{"epochs": 0.5}, {"tokens": 2000}, {"flops": 5e7}, {"minutes": 0.01}])
def test_budgets_end_a_run(tmp_path: Path, budget: dict[str, float]) -> None:
    config = tiny(tmp_path / "run")
    config.budget = RunConfig.of({"budget": budget}).budget
    result = train(config)
    spent = {
        "epochs": result.steps * 8 / 200,
        "tokens": result.tokens,
        "flops": result.flops,
        "minutes": result.seconds / 60,
    }
    ((kind, limit),) = budget.items()
    assert spent[kind] >= 0.95 * limit  # epochs are rounded to whole steps
    assert result.steps < 2000


def test_the_length_of_a_run_is_estimated_for_schedules() -> None:
    config = RunConfig.of({"budget": {"tokens": 1000}}).budget
    assert Budget(config, per_epoch=10).total(Counters(step=5, tokens=250)) == 20
    assert Budget(RunConfig().budget, per_epoch=10).steps == 3000


def test_early_stopping_only_when_asked(tmp_path: Path) -> None:
    settings = {"validation__every": 1, "optimizer__lr": 0.0, "budget__steps": 10}
    assert train(tiny(tmp_path / "a", **settings)).status == "finished"
    result = train(tiny(tmp_path / "b", **settings, validation__patience=3))
    assert (result.status, result.steps, result.best["step"]) == ("stopped early", 4, 1)


def test_headline_of_metrics() -> None:
    assert headline({"exact_match": 1.0, "loss": 2.0}) == ("exact_match", True)
    assert headline({"perplexity": 3.0, "loss": 1.0}) == ("perplexity", False)
    assert headline({"loss": 1.0}) == ("loss", False)


def test_adafactor_with_t5s_schedule(tmp_path: Path) -> None:
    settings = {"optimizer__name": "adafactor", "schedule__name": "constant", "schedule__warmup": 0}
    train(tiny(tmp_path / "whole", **settings))
    train(tiny(tmp_path / "parts", **settings, budget__steps=6))
    train(tiny(tmp_path / "parts", **settings, resume="auto"))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


# ------------------------------------------------------------------------------------------------ every form of task


def labelled(tmp_path: Path) -> str:
    rows = [{"text": f"{word} {i}", "more": "x y", "label": word} for i in range(12) for word in ("good", "bad")]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file:{tmp_path / 't.jsonl'}?text=text,more&label=label"


def fashion(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "fashion_mnist"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        images, labels = (
            np.random.default_rng(0).integers(0, 255, (10_020, 28, 28), np.uint8),
            np.arange(10_020, dtype=np.uint8) % 10,
        )
        for name, values in ((f"{part}-images-idx3-ubyte.gz", images), (f"{part}-labels-idx1-ubyte.gz", labels)):
            header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / name).write_bytes(gzip.compress(header + values.tobytes(), 1))
    return folder.parent


SMALL = {"d_model": 16, "d_ff": 32, "layers": 1}


@pytest.mark.parametrize(
    "model, task, metric",
    [
        ("bert-tiny", "labelled", "accuracy"),
        ("lm-tiny", "scan", "exact_match"),
        ("gmlp-tiny", "toy", "perplexity"),
        ("lm-tiny", "toy", "perplexity"),
        ("remixer-tiny", "toy", "perplexity"),
        ("gmlp-vision-tiny", "fashion_mnist", "accuracy"),
    ],
)
def test_every_form_of_task_trains_and_validates(tmp_path: Path, model: str, task: str, metric: str) -> None:
    config = tiny(tmp_path / "run", model__name=model, budget__steps=3, validation__metric=True, data__vocab_size=600)
    config.model.options = dict(SMALL)
    config.data.task = labelled(tmp_path) if task == "labelled" else task
    config.data.folder = str(fashion(tmp_path)) if task == "fashion_mnist" else None
    result = train(config)
    assert result.steps == 3
    assert metric in result.metrics
    assert np.isfinite(result.metrics["loss"])


def test_span_answers_train_and_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmix.data.readers import Row
    from tokenmix.data.sources import Made
    from tokenmix.data.task import _TASKS, Example, Task
    from tokenmix.evaluation import metrics

    def convert(row: Row, split: str) -> Example:
        return Example(question="who came", context=f"then {row['name']} came in", answers=(row["name"],), start=5)

    rows = [{"name": name} for name in ("ada", "ben", "eve", "tom")] * 4
    source = Made({"train": lambda: rows, "validation": lambda: rows})
    score = lambda p, e: metrics.squad(p, [x.answers for x in e])  # noqa: E731
    monkeypatch.setitem(_TASKS, "who", Task("who", "test", (source,), {"span": convert}, score, "f1"))
    config = tiny(
        tmp_path / "run", model__name="bert-tiny", data__task="who", data__tokenizer="word", validation__metric=True
    )
    config.model.options = dict(SMALL)
    assert "f1" in train(config).metrics


def test_finetuning_starts_from_weights(tmp_path: Path) -> None:
    config = tiny(
        tmp_path / "pretrained", model__name="gmlp-tiny", data__task="toy", data__vocab_size=600, budget__steps=2
    )
    config.model.options = dict(SMALL)
    train(config)
    tuned = tiny(tmp_path / "tuned", model__name=None, model__weights=str(tmp_path / "pretrained"), budget__steps=2)
    tuned.model.name, tuned.model.options, tuned.data.task = None, {"dropout": 0.1}, labelled(tmp_path)
    result = train(tuned)
    assert result.steps == 2
    before, after = weights(tmp_path / "pretrained"), weights(tmp_path / "tuned")
    shared = [name for name in after if name in before and "embed.tokens" in name]
    assert shared
    assert all(torch.allclose(after[n], before[n], atol=0.05) for n in shared)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model__name": "remixer-tinny"}, "did you mean 'remixer-tiny'"),
        ({"data__task": "scann"}, "did you mean 'scan'"),
        ({"model__name": "bert-tiny"}, "body 'encoder' cannot learn task 'scan'"),
        ({"data__batch_size": 0}, "data.batch_size must be at least 1; got 0"),
    ],
)
def test_mistakes_are_answered_before_anything_is_trained(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(tiny(tmp_path / "run", **changes))


def test_dropout_of_the_options_is_dropout_everywhere(tmp_path: Path) -> None:
    """A preset's attention dropout follows its dropout; so it does when that is overridden."""
    for dropout in (0.0, 0.3):
        model = build(tiny(tmp_path, model__options__dropout=dropout)).model.config
        assert (model.dropout, model.attention_dropout, model.inner_dropout) == (dropout, dropout, dropout)


def test_a_layer_in_place_of_a_preset(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", model__layer="random + dot | remix", budget__steps=2)
    config.model.name = None
    assert train(config).steps == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text())["layer"] == "random + dot | remix"


def validations(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "validation"]


def test_every_fifth_of_any_budget_is_validated(tmp_path: Path) -> None:
    for name, budget in (("steps", {"steps": 20}), ("tokens", {"tokens": 20 * 8 * 16})):
        config = tiny(tmp_path / name, checkpoints__every=0)
        config.budget, config.validation.every = RunConfig.of({"budget": budget}).budget, None
        result = train(config)
        steps = [record["step"] for record in validations(tmp_path / name)]
        assert len(steps) == len(set(steps)) == 5, (name, steps)  # the last one once
        assert steps == pytest.approx([result.steps * k / 5 for k in range(1, 6)], abs=1.5)


def test_equal_metrics_are_told_apart_by_the_loss(tmp_path: Path) -> None:
    settings = {"validation__every": 2, "validation__metric": True, "validation__patience": 2, "optimizer__lr": 1e-2}
    result = train(tiny(tmp_path / "run", **settings, budget__steps=8))
    found = validations(tmp_path / "run")
    assert {record["exact_match"] for record in found} == {0.0}  # nothing is learnt yet
    assert result.status == "finished"
    assert result.best["step"] == min(found, key=lambda record: record["loss"])["step"] > 2


def test_one_process_trains_in_one_precision_after_another(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16", "fp32"):
        train(tiny(tmp_path / precision, device__precision=precision, budget__steps=2, resume="auto"))
    environment = json.loads((tmp_path / "bf16" / "environment.json").read_text())
    assert environment["precision"] == "bf16"


def test_weights_bring_their_layers(tmp_path: Path) -> None:
    train(tiny(tmp_path / "first", budget__steps=1, model__options={"dropout": 0.0, "d_model": 16, "heads": 2}))
    weights = {"weights": str(tmp_path / "first"), "options": {"dropout": 0.1}}
    for name, value in (("layer", "gmlp"), ("name", "gmlp-tiny")):
        config = tiny(tmp_path / "second")
        config.model = RunConfig.of({"model": {**weights, name: value}}).model
        with pytest.raises(ValueError, match="bring their own layers"):
            train(config)
    config = tiny(tmp_path / "third", budget__steps=1)
    config.model = RunConfig.of({"model": weights}).model
    train(config)
    made = TokenmixConfig.from_pretrained(tmp_path / "third")
    assert (made.dropout, made.attention_dropout, made.inner_dropout) == (0.1, 0.1, 0.1)  # T5's follow


# ------------------------------------------------------------------------------------ data that does not fit the run


def rows(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def shards(tmp_path: Path) -> Path:
    from tokenmix.data.shard_writer import prepare_shards
    from tokenmix.data.tokenizers import train_tokenizer

    text = [f"{word} number {n} and so on" for n in range(300) for word in ("one", "two", "six")]
    (tmp_path / "text.txt").write_text("\n\n".join(text))
    tokenizer = train_tokenizer(text, vocab_size=400)
    prepare_shards([tmp_path / "text.txt"], tokenizer, tmp_path / "shards")
    return tmp_path / "shards"


def test_shards_are_read_with_their_own_tokenizer_alone(tmp_path: Path) -> None:
    from tokenmix.data.tokenizers import train_tokenizer

    task = f"shards:{shards(tmp_path)}"
    train_tokenizer(["a b c"], kind="word", vocab_size=20).save_pretrained(tmp_path / "other")
    train(tiny(tmp_path / "words", budget__steps=1))  # a run whose tokenizer knows the words of SCAN
    own = str(tmp_path / "shards" / "tokenizer")
    for tokenizer, begun, message in (
        (str(tmp_path / "other"), None, "hold ids of another tokenizer"),
        (None, str(tmp_path / "words"), "hold ids of another tokenizer"),
        ("unigram", None, "leave it out"),
        (own, None, None),
        (None, None, None),
    ):
        config = tiny(tmp_path / "run", data__task=task, data__tokenizer=tokenizer, data__max_input=32)
        if begun is not None:
            config.model = RunConfig.of({"model": {"weights": begun}}).model
        if message is None:
            assert build(config).tokenizer.get_vocab()["</s>"] == 1
        else:
            with pytest.raises(ValueError, match=message):
                build(config)
    result = train(tiny(tmp_path / "run", data__task=task, data__max_input=32, budget__steps=1))
    assert f"tokenmix evaluate {tmp_path / 'run'} --task file:text.txt" in result.summary()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ("&validation=none.jsonl", FileNotFoundError, r"no file for split 'validation'. Looked for .*none\.jsonl"),
        ("&validation=empty.jsonl", ValueError, r"split 'validation': no examples in .*empty\.jsonl"),
    ],
)
def test_a_validation_file_must_be_there_and_hold_examples(
    tmp_path: Path, changes: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "empty.jsonl").touch()
    path = rows(tmp_path / "a.jsonl", {"q": "jump", "a": "JUMP"})
    with pytest.raises(error, match=message):
        build(tiny(tmp_path / "run", data__task=f"file:{path}?input=q&target=a{changes}"))


def test_a_training_file_without_examples_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"split 'train': no examples in .*empty\.jsonl"):
        build(tiny(tmp_path / "run", data__task=f"file:{tmp_path / 'empty.jsonl'}?input=q&target=a"))


def test_what_is_cut_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = [{"q": "jump " * (20 if n < 5 else 3), "a": "JUMP"} for n in range(20)]
    task = f"file:{rows(tmp_path / 'a.jsonl', *records)}?input=q&target=a&name=jumps"
    options = {"data__task": task, "data__tokenizer": "word"}
    build(tiny(tmp_path / "run", **options))
    assert "are cut" not in caplog.text  # the model grows to its data
    build(tiny(tmp_path / "run", **options, data__max_input=8))
    said = [record.getMessage() for record in caplog.records if "are cut" in record.getMessage()]
    assert said == ["task jumps: about 25% of the inputs are longer than max_length=8 and are cut"]


def test_a_mixture_goes_without_the_tasks_that_are_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tokenmix.data.mixtures import MIXTURES

    monkeypatch.setitem(MIXTURES, "some", {"scan": 1, "cogs": 1, "scan_length": 1})
    parts = build(tiny(tmp_path / "run", data__task="some", data__folder=str(tmp_path)))
    assert list(parts.tasks) == list(parts.held_out) == ["scan", "scan_length"]
    assert "mixture some goes without cogs" in caplog.text
    with pytest.raises(FileNotFoundError, match="data not found"):
        build(tiny(tmp_path / "run", data__task="cogs", data__folder=str(tmp_path)))
    monkeypatch.setitem(MIXTURES, "some", {"cogs": 1})
    with pytest.raises(ValueError, match="none of the tasks of mixture 'some' has data: cogs"):
        build(tiny(tmp_path / "run", data__task="some", data__folder=str(tmp_path)))


def test_a_classifier_knows_the_names_of_its_labels(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    two = [{"text": f"{label} {n}", "label": label} for n in range(4) for label in ("a", "b")]
    path = rows(tmp_path / "two.jsonl", *two)
    config = tiny(tmp_path / "run", model__name="bert-tiny", data__task=f"file:{path}?text=text&label=label")
    config.model.options = dict(SMALL)
    train(config)
    made = TokenmixConfig.from_pretrained(tmp_path / "run")
    assert (made.id2label, made.label2id, made.num_labels) == ({0: "a", 1: "b"}, {"a": 0, "b": 1}, 2)
    tuned = tiny(tmp_path / "tuned", data__task=labelled(tmp_path))
    tuned.model = RunConfig.of({"model": {"weights": str(tmp_path / "run")}}).model
    assert build(tuned).model.config.id2label == {0: "bad", 1: "good"}
    said = capfd.readouterr().err
    assert "num_labels" not in said
    assert "Loading weights" not in said


def test_weights_for_other_labels_or_sizes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = rows(
        tmp_path / "three.jsonl", *({"text": f"{label} {n}", "label": label} for n in range(4) for label in "abc")
    )
    config = tiny(tmp_path / "run", budget__steps=2, model__name="bert-tiny", data__task=labelled(tmp_path))
    config.model.options = dict(SMALL)
    train(config)
    task = f"file:{path}?text=text&label=label"
    tuned = tiny(tmp_path / "tuned", budget__steps=2, data__task=task)
    tuned.model = RunConfig.of({"model": {"weights": str(tmp_path / "run")}}).model
    model = build(tuned).model
    assert model.config.num_labels == 3
    assert "knows 2 labels, the task 3" in caplog.text
    before, after = weights(tmp_path / "run"), dict(model.state_dict())
    assert after["classifier.weight"].shape[0] == 3
    assert 0 < after["classifier.weight"].std() < 0.1
    fitting = [name for name in before if not name.startswith("classifier")]
    assert same({name: before[name] for name in fitting}, {name: after[name] for name in fitting})
    train(tuned)
    tuned.out = str(tmp_path / "wider")
    tuned.model.options = {"d_model": 2 * model.config.d_model}
    with pytest.raises(ValueError, match=r"do not fit: model\..* there and .* in this model"):
        train(tuned)


def test_what_fails_before_it_begins_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, stays in (("new", False), ("there", True)):
        with pytest.raises(ValueError, match="expected a field 'text'"):
            train(tiny(tmp_path / name, data__task=f"file:{rows(tmp_path / 'a.jsonl', {'a': 'b'})}"))
        assert (tmp_path / name).exists() == stays


def test_a_layer_in_a_preset_is_part_of_the_runs_name(tmp_path: Path) -> None:
    class Named(Callback):
        def on_start(self, run: dict[str, Any]) -> None:
            self.name = run["model"]

    told = Named()
    train(tiny(tmp_path / "run", model__layer="dot | geglu", budget__steps=1), callbacks=[told])
    assert told.name == "remixer-tiny with layer dot | geglu"
