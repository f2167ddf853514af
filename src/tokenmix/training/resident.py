"""What a run leaves to the next one of its kind: the compiled model, its optimizer and its recorded steps.

Compiling and recording a small model's step takes longer on a GPU than thousands of such steps. Runs that differ only in
what a step reads from the device (weights, batches, learning rate, random numbers), as the seeds of a comparison do, need
it once: the next run's first weights are copied into the model that is there.
"""

from __future__ import annotations

import dataclasses
import gc
import json
from itertools import chain
from typing import Any

import torch
from torch import nn

from tokenmix.training.batches import Batches
from tokenmix.training.config import RunConfig
from tokenmix.training.graphs import GraphedSteps


@dataclasses.dataclass
class Resident:
    """A model that is ready to take steps; ``kind`` says of which run."""

    kind: str
    model: Any
    optimizer: torch.optim.Optimizer
    replica: Any  #: the model, compiled
    graphs: GraphedSteps


_last: Resident | None = None  # one is enough: seeds of a model follow each other


def kind_of(config: RunConfig, model: Any, batches: Batches) -> str:
    """All that a compiled and recorded step depends on."""
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parts = [
        type(model).__name__, model.config.to_dict(), learning, dataclasses.asdict(config.optimizer),
        dataclasses.asdict(config.device), dataclasses.asdict(config.data), batches.shapes, list(batches.room.values()),
    ]  # fmt: skip
    return json.dumps(parts, default=str)


def keep(resident: Resident) -> None:
    """Leave it to the next run of this process."""
    global _last
    _last = resident


def release() -> None:
    """Let go of what the last run left, and of the memory that it holds."""
    global _last
    if _last is not None:
        _last = None
        gc.collect()  # a recorded step knows its trainer, which knows it
        torch.cuda.empty_cache()


def take(kind: str, model: nn.Module, *, fresh: bool = True) -> Resident | None:
    """The model that an earlier run of this kind left, with the weights of ``model`` and an optimizer that knows nothing
    yet: for a run that begins (``fresh``). What else was left is let go."""
    global _last
    if _last is None or _last.kind != kind or not fresh:
        release()
        return None
    found, _last = _last, None
    with torch.no_grad():
        for mine, new in zip(_tensors(found.model), _tensors(model), strict=True):
            mine.copy_(new)
        for state in found.optimizer.state.values():
            for value in state.values():
                value.zero_()
    return found


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return list(chain(model.parameters(), model.buffers()))
