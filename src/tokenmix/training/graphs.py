"""Whole training steps as CUDA graphs: forward, backward, clipping and optimizer, one graph per shape of batch.

A small model on a large GPU waits for Python and for launches, not for arithmetic. A recorded step is one launch; what
differs from step to step (the batch, its number of labels, the learning rate, the seed) lies in tensors on the device
that are filled before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Shape: TypeAlias = tuple[tuple[str, torch.Size], ...]
Step: TypeAlias = Callable[[dict[str, Tensor], Tensor], Tensor]


def shape_of(tensors: dict[str, Tensor]) -> Shape:
    """What a recorded step depends on: the names and shapes of a batch's tensors."""
    return tuple((name, value.shape) for name, value in sorted(tensors.items()))


class Recorded(NamedTuple):
    """One graph, the tensors it reads and the one it writes."""

    graph: torch.cuda.CUDAGraph
    tensors: dict[str, Tensor]
    items: Tensor
    result: Tensor


class GraphedSteps:
    """Records `step(tensors, items)`, which must not ask the device for a number, and replays it.

    The optimizer is fused AdamW with `capturable`; its learning rates become tensors.
    """

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        self.step, self.optimizer = step, optimizer
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()  # one replay at a time: the graphs share their memory
        self.recorded: dict[Shape, Recorded] = {}
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Where steps are tried out before they are recorded: autograd remembers the stream it first ran on."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def __contains__(self, tensors: dict[str, Tensor]) -> bool:
        """Whether a step on such a batch was recorded."""
        return shape_of(tensors) in self.recorded

    def record(self, tensors: dict[str, Tensor], items: Tensor) -> None:
        """Record the step of a shape that was tried out; weights and optimizer stay as they are."""
        tensors, items = {name: value.clone() for name, value in tensors.items()}, items.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            result = self.step(tensors, items)
        self.recorded[shape_of(tensors)] = Recorded(graph, tensors, items, result)

    def replay(self, tensors: dict[str, Tensor], items: Tensor) -> Tensor:
        """One step on new data. The answer is overwritten by the next step."""
        recorded = self.recorded[shape_of(tensors)]
        for name, value in tensors.items():
            recorded.tensors[name].copy_(value, non_blocking=True)
        recorded.items.copy_(items, non_blocking=True)
        recorded.graph.replay()
        return recorded.result
