"""Compiled training: every shape before the first step, none after it; and steps that are left out on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import tiny

from tokenmix.training import Callback, train
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
