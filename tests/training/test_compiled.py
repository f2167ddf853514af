"""Compiled training: every shape before the first step, none after it; and steps that are left out on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import tiny, weights

from tokenmix.training import Callback, loop, resident, train
from tokenmix.training.graphs import GraphedSteps, shape_of
from tokenmix.training.loop import Trainer


class Count(Callback):
    """Graphs that were compiled by the end of each step."""

    def __init__(self) -> None:
        self.graphs: list[int] = []

    def on_step(self, step: int, fraction: float) -> None:
        from torch._dynamo.utils import counters

        self.graphs.append(counters["stats"]["unique_graphs"])


def test_nothing_is_compiled_after_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, shapes = torch.compile, set()
    monkeypatch.setattr(
        torch, "compile", lambda model, **_: compile_(model, backend="eager", dynamic=False, fullgraph=True)
    )
    fetch = Trainer._fetch

    def watched(self: Trainer, loader: Any) -> Any:
        batch = fetch(self, loader)
        shapes.add(batch.shape)
        return batch

    monkeypatch.setattr(Trainer, "_fetch", watched)
    torch._dynamo.reset()
    count = Count()
    train(
        tiny(tmp_path / "run", device__compile=True, budget__steps=30, data__buckets=2),
        callbacks=[count],
    )
    assert len(shapes) > 1
    assert count.graphs[0] > 0
    assert len(set(count.graphs)) == 1


def test_a_fused_optimizer_leaves_out_a_step_on_the_device() -> None:
    """What a GPU run relies on to check the loss one step late: `found_inf` leaves weights and moments as they are."""
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    parameter.grad = torch.ones(4)
    optimizer.step()
    before = parameter.detach().clone(), {k: v.clone() for k, v in optimizer.state[parameter].items()}
    parameter.grad = torch.full((4,), torch.nan)
    optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(1.0)  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(parameter, before[0])
    assert all(torch.equal(value, before[1][name]) for name, value in optimizer.state[parameter].items())


class Replayed(GraphedSteps):
    """Recorded steps without a GPU: a replay runs the step again on the tensors it was recorded with."""

    def __init__(self, step: Any, optimizer: torch.optim.Optimizer) -> None:
        self.step, self.recorded = step, {}
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]))

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        yield

    def record(self, tensors: dict[str, torch.Tensor], items: torch.Tensor) -> None:
        mine = {name: value.clone() for name, value in tensors.items()}
        self.recorded[shape_of(tensors)] = mine, items.clone()  # type: ignore[assignment]

    def replay(self, tensors: dict[str, torch.Tensor], items: torch.Tensor) -> torch.Tensor:
        mine, count = self.recorded[shape_of(tensors)]  # type: ignore[misc]
        for name, value in tensors.items():
            mine[name].copy_(value)
        return self.step(mine, count.copy_(items))


@pytest.mark.parametrize("alone", [False, True])
def test_the_loop_around_recorded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Warm-up leaves weights and moments as they are; batch, count of labels, rate and seed reach every step."""
    settings = {"budget__steps": 20, "data__buckets": 2, "optimizer__clip": 0.5, "device__cuda_graphs": True}
    settings |= {"device__skip_padding": alone}
    monkeypatch.setattr(loop, "GraphedSteps", Replayed)
    for name in ("plain", "recorded"):
        monkeypatch.setattr(Trainer, "_wants_graphs", lambda self, name=name: name == "recorded")
        train(tiny(tmp_path / name, **settings))
    plain, recorded = weights(tmp_path / "plain"), weights(tmp_path / "recorded")
    off = {name: float((plain[name] - recorded[name]).abs().max()) for name in plain}
    assert max(off.values()) < 1e-4, (
        off
    )  # weights move by some 1e-2; AdamW makes much of the rounding of tiny gradients


def test_seeds_of_a_model_share_what_was_compiled_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run takes over the first one's model and ends with the weights that it reaches by itself."""
    monkeypatch.setattr(loop, "GraphedSteps", Replayed)
    monkeypatch.setattr(Trainer, "_wants_graphs", lambda self: True)
    record, recorded = Replayed.record, []

    def counted(self: Replayed, tensors: dict[str, torch.Tensor], items: torch.Tensor) -> None:
        recorded.append(shape_of(tensors))
        record(self, tensors, items)

    monkeypatch.setattr(Replayed, "record", counted)
    options = {"budget__steps": 6, "data__buckets": 1, "device__skip_padding": True, "device__cuda_graphs": True}
    options |= {"model__name": None, "model__layer": "random(fixed=True) + dot | geglu"}  # a buffer of its own, too
    runs = {}
    for name, seed in (("first", 0), ("second", 1), ("again", 0)):
        train(tiny(tmp_path / name, seed=seed, **options))
        runs[name] = weights(tmp_path / name)
    assert len(recorded) == 1
    monkeypatch.setattr(resident, "_last", None)
    train(tiny(tmp_path / "alone", seed=1, **options))
    assert len(recorded) == 2
    for name, value in weights(tmp_path / "alone").items():
        assert torch.equal(value, runs["second"][name]), name
        assert torch.equal(runs["again"][name], runs["first"][name]), name
    assert any(not torch.equal(value, runs["first"][name]) for name, value in runs["second"].items())
    train(tiny(tmp_path / "wider", seed=1, **{**options, "model__options": {"d_model": 48}}))  # another kind
    assert len(recorded) == 3


def test_steps_that_cannot_be_recorded_are_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unrecordable(Replayed):
        def record(self, tensors: dict[str, torch.Tensor], items: torch.Tensor) -> None:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    class Heard(Callback):
        said: list[str] = []

        def on_message(self, text: str) -> None:
            self.said.append(text)

    monkeypatch.setattr(loop, "GraphedSteps", Unrecordable)
    monkeypatch.setattr(Trainer, "_wants_graphs", lambda self: True)
    result = train(tiny(tmp_path / "a", budget__steps=3), callbacks=[Heard()])
    assert result.steps == 3
    assert [text for text in Heard.said if "cannot be recorded" in text and text.endswith("capturing")]
    with pytest.raises(RuntimeError, match="not permitted"):  # who asks for graphs is told
        train(tiny(tmp_path / "b", budget__steps=3, device__cuda_graphs=True))


class Losses(Callback):
    """The loss of every logged step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, record: dict[str, Any]) -> None:
        self.losses.append(record["loss"])


class Batched(Callback):
    """Names of the tensors of all batches, and how many tokens were computed for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[set[str]] = []
        self.places: set[int] = set()
        fetch = Trainer._fetch

        def watched(trainer: Trainer, loader: Any) -> Any:
            batch = fetch(trainer, loader)
            self.names.append(set(batch.tensors))
            self.places.add(len(batch.tensors.get("decoder_tokens", ())))
            return batch

        monkeypatch.setattr(Trainer, "_fetch", watched)


def test_a_compiled_model_learns_the_same_from_real_tokens_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_, count, losses = torch.compile, Count(), {}
    monkeypatch.setattr(
        torch, "compile", lambda model, **_: compile_(model, backend="eager", dynamic=False, fullgraph=True)
    )
    seen = Batched(monkeypatch)
    options = {"d_model": 32, "d_ff": 64, "heads": 2, "layers": 1, "dropout": 0.0}
    settings = {"device__compile": True, "budget__steps": 15, "log_every": 1, "data__buckets": 1}
    for alone in (False, True):
        torch._dynamo.reset()
        seen.names.clear()
        watch = Losses()
        config = tiny(tmp_path / str(alone), model__options=options, device__skip_padding=alone, **settings)
        train(config, callbacks=[watch, *([count] if alone else [])])
        losses[alone] = watch.losses
        assert all(("decoder_tokens" in names) == alone for names in seen.names)
    assert len(seen.places) == 2  # none, and one fixed number
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert len(set(count.graphs)) == 1  # nothing compiled after warm-up


def test_only_seq2seq_models_in_one_process_leave_out_padding_where_shapes_are_fixed(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", model__name="lm-tiny", device__skip_padding=True, device__compile=True)
    with pytest.raises(ValueError, match=r"device.skip_padding is for seq2seq models"):
        train(config)


@pytest.mark.gpu
@pytest.mark.parametrize("alone", [False, True])
def test_recorded_steps_are_the_steps_that_were_recorded(
    tmp_path: Path, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shapes (or one, of real tokens alone), a learning rate that moves, clipping: with CUDA graphs as without."""
    batched = Batched(monkeypatch)
    seen = {}
    for graphs in (True, False):
        watch = Losses()
        train(
            tiny(
                tmp_path / str(graphs), device__device="cuda", device__compile=True, device__cuda_graphs=graphs,
                device__precision="fp32", budget__steps=40, data__buckets=1 if alone else 2, log_every=1, optimizer__clip=0.5,
                device__skip_padding=alone,
            ),
            callbacks=[watch],
        )  # fmt: skip
        seen[graphs] = watch.losses
    assert len(seen[True]) == 40
    assert all(("decoder_tokens" in names) == alone for names in batched.names)
    assert seen[True] == pytest.approx(seen[False], rel=1e-3)
    assert seen[True][-1] < 0.9 * seen[True][0]


@pytest.mark.gpu
def test_a_recorded_step_leaves_out_what_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = Trainer._items

    def spoilt(self: Trainer, batch: Any) -> torch.Tensor:
        return items(self, batch) * (float("nan") if batch.number == 7 else 1.0)

    monkeypatch.setattr(Trainer, "_items", spoilt)
    result = train(
        tiny(tmp_path / "run", device__device="cuda", device__cuda_graphs=True, budget__steps=12, on_nonfinite="skip")
    )
    assert result.skipped == 1
    assert torch.isfinite(torch.tensor(result.loss))


def test_graphs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cuda_graphs needs one GPU"):
        train(tiny(tmp_path / "run", device__device="cpu", device__cuda_graphs=True))
