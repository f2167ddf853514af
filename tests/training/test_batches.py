"""Batches are a pure function of (seed, number)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import tiny

from tokenmix.data.objectives import MaskedLM
from tokenmix.models import create_model
from tokenmix.training import train
from tokenmix.training.batches import Batches, bucket_shapes, split_rows
from tokenmix.training.build import build
from tokenmix.training.examples import MemoryWindows, MixtureExamples, TaskExamples, TextExamples
from tokenmix.training.features import pad
from tokenmix.training.flops import StepFlops
from tokenmix.training.loop import Trainer


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> object:
    return build(tiny(tmp_path_factory.mktemp("run"), data__limit=1000)).examples


def numbers(batches: Batches, pools: int) -> list[int]:
    """Indices of the examples of the first pools, in the order of the stream."""
    return np.concatenate([batches._plan(pool)[0].ravel() for pool in range(pools)]).tolist()


def test_no_example_comes_twice_in_an_epoch_and_all_come(examples: object) -> None:
    batches = Batches(examples, 10, seed=3)
    assert batches.pool == 64
    first = numbers(batches, 1)
    assert len(set(first)) == len(first) == 640
    counts = np.bincount(numbers(batches, 25), minlength=1000)  # 16,000 examples: 16 epochs
    assert set(counts.tolist()) == {16}
    assert numbers(Batches(examples, 10, seed=4), 1) != first


def test_any_batch_can_be_made_at_any_time(examples: object) -> None:
    a, b = Batches(examples, 8, seed=3), Batches(examples, 8, seed=3)
    assert all(len(a[n].tensors) == 3 for n in range(100))
    assert all(torch.equal(a[200].tensors[k], b[200].tensors[k]) for k in a[200].tensors)
    assert any(
        not torch.equal(a[n].tensors["labels"], Batches(examples, 8, seed=4)[n].tensors["labels"]) for n in range(3)
    )


def test_processes_share_out_one_global_batch(examples: object) -> None:
    whole = Batches(examples, 8, seed=1)[17]
    parts = [Batches(examples, 8, seed=1, rank=r, world=2)[17] for r in range(2)]
    for name, value in whole.tensors.items():
        assert torch.equal(torch.cat([part.tensors[name] for part in parts]), value)
    assert sum(part.items for part in parts) == whole.items
    assert {part.tokens for part in parts} == {whole.tokens}
    with pytest.raises(ValueError, match="batch_size=8 does not divide among 3 processes"):
        Batches(examples, 8, world=3)


def test_shapes_are_few_and_hold_their_examples(examples: object) -> None:
    batches = Batches(examples, 8, buckets=4)
    seen = {(b.tensors["input_ids"].shape[1], b.tensors["labels"].shape[1]) for b in (batches[n] for n in range(250))}
    assert seen <= set(batches.shapes)
    assert len(batches.shapes) <= 4
    exact = Batches(examples, 8, buckets=4, exact=True)
    padded = sum(b.tensors["labels"].numel() for b in (batches[n] for n in range(60)))
    less = sum(b.tensors["labels"].numel() for b in (exact[n] for n in range(60)))
    assert less <= padded
    assert bucket_shapes(np.array([[3, 0], [100, 0]]), 3) == [(8, 0), (104, 0)]


def test_a_few_very_long_examples_do_not_set_the_padding_of_all():
    sizes = np.full((1000, 2), 16)
    sizes[:20] = 64
    assert bucket_shapes(sizes, 2) == [(16, 16), (64, 64)]
    sizes[:21] = 64  # more than a fiftieth: no longer a few
    sizes[500:] = 8
    assert bucket_shapes(sizes, 2) == [(8, 8), (64, 64)]
    sizes[:20] = 72  # few, and hardly longer
    assert bucket_shapes(sizes, 2) == [(8, 8), (72, 72)]
    assert bucket_shapes(sizes, 1) == [(72, 72)]  # one shape is one shape


def test_places_are_those_of_all_real_tokens_and_of_a_fixed_number(examples: object) -> None:
    batches = Batches(examples, 32, buckets=1, places=True)
    (shape,) = batches.shapes
    counts = set()
    for number in range(30):
        tensors = batches[number].tensors
        for name, real in (("encoder_tokens", "attention_mask"), ("decoder_tokens", "labels")):
            places = tensors[name]
            counts.add((name, len(places)))
            mask = tensors[real].flatten() > 0
            assert len(places.unique()) == len(places) < mask.numel()
            assert set(mask.nonzero().flatten().tolist()) <= set(places.tolist())
    assert len(counts) == 2
    batches.room = {shape: (8, batches.room[shape][1])}
    assert "encoder_tokens" not in batches[0].tensors  # more tokens than there is room for
    assert "decoder_tokens" not in batches[0].tensors
    batches.room = {shape: (32 * shape[0], batches.room[shape][1])}
    assert "encoder_tokens" not in batches[0].tensors  # hardly any padding
    assert "decoder_tokens" in batches[0].tensors


def test_micro_batches_are_the_batch(examples: object) -> None:
    tensors = Batches(examples, 8)[0].tensors
    parts = split_rows(tensors, 3)
    assert [len(part["labels"]) for part in parts] == [3, 3, 2]
    assert torch.equal(torch.cat([part["labels"] for part in parts]), tensors["labels"])


def test_every_model_sees_the_same_batches(tmp_path: Path) -> None:
    runs = [build(tiny(tmp_path, model__name=name)) for name in ("remixer-tiny", "lightconv-tiny")]
    a, b = (Batches(run.examples, 8, seed=5)[9].tensors for run in runs)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_masked_lm_computes_the_vocabulary_where_a_label_asks_for_it():
    objective = MaskedLM(mask_id=4, vocab_size=50, special_ids=(0, 1, 2, 3, 4), cls_id=1, sep_id=2, max_length=32)
    texts = [np.random.default_rng(0).integers(5, 50, 400), [2] * 25]  # the last windows: nothing to predict
    examples = TextExamples(MemoryWindows(texts, objective.window), objective)
    batch = Batches(examples, 8)[0].tensors
    where, labels = batch["predicted_positions"], batch["labels"]
    assert where.shape == (8, objective.predictions)
    assert (labels.gather(1, where) != -100).sum() == (labels != -100).sum()  # every label is there, and once
    assert all(len(set(row)) == len(row) for row in where.tolist())

    torch.manual_seed(0)
    model = create_model("bert-tiny", vocab_size=50, max_length=32, dropout=0.0)
    found = []
    for inputs in (batch, {name: value for name, value in batch.items() if name != "predicted_positions"}):
        out = model(**inputs, return_logits=False)
        found.append((out.loss, torch.autograd.grad(out.loss, list(model.parameters()))))
    torch.testing.assert_close(found[0], found[1])
    assert model(**batch).logits.shape == (8, 32, 50)
    flops = StepFlops(model)
    assert flops(8, (32, 0), objective.predictions) < flops(8, (32, 0))


class Lengths:
    """Features of given lengths."""

    def encode(self, examples: list[tuple[int, int]]) -> list[dict[str, list[int]]]:
        return [{"input_ids": [1] * a, "labels": [1] * b} for a, b in examples]

    def sizes(self, feature: dict[str, list[int]]) -> tuple[int, int]:
        return len(feature["input_ids"]), len(feature["labels"])

    def collate(self, features: list[dict[str, list[int]]], shape: tuple[int, int]) -> dict[str, torch.Tensor]:
        rows = [pad([f[name] for f in features], n, 0) for name, n in zip(("input_ids", "labels"), shape)]
        return dict(zip(("input_ids", "labels"), rows))


def test_mixtures_of_tasks_make_batches_and_warm_up() -> None:
    maker, rng = Lengths(), np.random.default_rng(0)
    tasks = {
        name: TaskExamples([(int(n), 3) for n in rng.integers(*ends, 200)], maker)
        for name, ends in (("short", (3, 10)), ("long", (40, 60)))
    }
    batches = Batches(MixtureExamples(tasks, maker.collate, seed=0), 16)
    seen = {batches[number].tensors["input_ids"].shape[1] for number in range(8)}
    assert seen <= {shape[0] for shape in batches.shapes}
    tried = []
    trainer = SimpleNamespace(
        compiled=True, graphs=None, ready=False, batches=batches, world=1, model=torch.nn.Identity(),
        device=torch.device("cpu"), optimizer=torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]),
        _to_device=lambda tensors: tensors,
        _items=lambda batch: None, _gradients=lambda batch, items, seed: tried.append(batch.shape),
        _record=lambda batch, items: None, _say=lambda text: None,
    )  # fmt: skip
    Trainer.warm_up(trainer)  # type: ignore[arg-type]
    assert tried == batches.shapes


def test_lengths_are_not_rounded_past_the_model(tmp_path: Path) -> None:
    assert train(tiny(tmp_path, budget__steps=2, model__options__max_length=20, data__limit=50)).steps == 2
