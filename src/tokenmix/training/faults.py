"""What can go wrong in a run, and what is done: non-finite losses, exhausted memory, two runs in one folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class TrainingFault(ValueError):
    """A run cannot go on; the message says why and where to look."""


# ------------------------------------------------------------------------------------------------ NaN and infinity


def first_nonfinite(model: nn.Module, batch: Mapping[str, Tensor], **inputs: Any) -> str | None:
    """The first module (in the order of computation) whose output is not finite for this batch; None if there is none.

    >>> first_nonfinite(model, {"input_ids": ids, "labels": ids})
    'model.encoder.layers.1.0'
    """
    found: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def hook(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            if not found and not all(_finite(tensor) for tensor in _tensors(output)):
                found.append(name or type(model).__name__)

        handles.append(module.register_forward_hook(hook))
    try:
        with torch.no_grad():
            model(**batch, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def nonfinite_report(
    model: nn.Module, batch: Mapping[str, Tensor], step: int, loss: float, folder: Path, **inputs: Any
) -> str:
    """Save the batch and a report below ``folder``; the answer is one sentence for the user."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in batch.items()}, folder / "batch.safetensors")
    bad_weights = [name for name, p in model.named_parameters() if not _finite(p)]
    bad_gradients = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    layer = first_nonfinite(model, batch, **inputs)
    report = {
        "step": step,
        "loss": str(loss),
        "first_nonfinite_layer": layer,
        "nonfinite_weights": bad_weights,
        "nonfinite_gradients": bad_gradients,
        "shapes": {name: list(value.shape) for name, value in batch.items()},
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    if layer is not None:
        where = f"the first layer with non-finite values is {layer}"
    elif bad_gradients:
        where = f"the forward pass is finite, the gradient is not: first in {bad_gradients[0]}"
    else:
        where = "repeating the batch gives finite values"
    return f"loss is {loss} at step {step}; {where}. Batch and report: {folder}"


def _finite(tensor: Tensor) -> bool:
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in _tensors(v)]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


# ---------------------------------------------------------------------------------------------------- out of memory


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    )


def memory_message(batch: Mapping[str, Tensor], accumulate: int) -> str:
    """What did not fit, and what to do."""
    shapes = {name: tuple(value.shape) for name, value in batch.items()}
    rows = next(iter(shapes.values()))[0]
    inputs = shapes.get("input_ids", shapes.get("pixel_values", (rows,)))[1:]
    targets = shapes.get("labels", ())[1:]
    length = "×".join(map(str, inputs)) + (f" and targets of {targets[0]}" if targets else "")
    return (
        f"out of memory at {rows} examples per micro-batch (accumulation {accumulate}) with inputs of length {length}; "
        f"take --auto-batch, --accumulate {accumulate * 2}, a smaller --batch-size, or --max-input"
    )


# ------------------------------------------------------------------------------------------------ one run per folder


class FolderInUse(TrainingFault):
    """Another process has the run folder."""


class FolderLock:
    """An OS lock on a run folder: gone with the process however that ends, and not inherited by its children. Who ``waits``
    gets it once it is free, others are told at once.

    >>> with FolderLock(Path("runs/a")):
    ...     train()
    """

    _held: set[Path] = set()  # record locks are per process: within one, we have to look ourselves

    def __init__(self, folder: Path, *, waits: bool = False) -> None:
        self.path = folder.resolve() / ".lock"
        self.waits = waits
        self.file: Any = None

    def __enter__(self) -> FolderLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path in self._held:
            raise TrainingFault(f"{self.path.parent} is in use by another run of this process; choose another --out")
        self.file = open(self.path, "a+")
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | (0 if self.waits else fcntl.LOCK_NB))
        except OSError:
            self.file.seek(0)
            owner = self.file.read().strip() or "unknown"
            self.file.close()
            raise FolderInUse(
                f"{self.path.parent} is in use by another run (process {owner}); wait for it, or choose another --out"
            ) from None
        self._held.add(self.path)
        self.file.truncate(0)
        self.file.write(str(os.getpid()))
        self.file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.discard(self.path)
        self.file.close()  # closing releases
