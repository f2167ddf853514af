"""Checkpoints: written aside, synced, renamed; hashed; safetensors and JSON only, so that nothing is ever unpickled.

    RUN/checkpoints/00001000/
        model.safetensors        weights (opens with from_pretrained, like the run itself)
        config.json
        optimizer.safetensors    "<parameter>/<name>"
        state.json               counters, seed; data position and random numbers follow from (seed, step)
        manifest.json            SHA-256 of every file, written last

A folder that lacks a file, or whose hashes differ, is passed over with a warning and the one before it is taken.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"


class CheckpointError(OSError):
    """A checkpoint could not be written or read."""


def open_weights(kind: Any, folder: Path, **options: Any) -> Any:
    """`kind.from_pretrained(folder)` without a progress bar. A classifier of other labels is made anew; weights that do not
    fit otherwise, or are damaged, are an error that says what to do."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model, found = kind.from_pretrained(folder, ignore_mismatched_sizes=True, output_loading_info=True, **options)
    except SafetensorError as error:
        raise ValueError(
            f"the weights in {folder} are damaged ({error}); take a checkpoint of the run, RUN/checkpoints/STEP"
        ) from None
    for name, there, wanted in sorted(found["mismatched_keys"], key=lambda key: key[0].startswith("classifier.")):
        if not name.startswith("classifier."):
            raise ValueError(
                f"the weights in {folder} do not fit: {name} is {list(there)} there and {list(wanted)} in this model; "
                "leave the model's sizes as they are in the weights"
            )
        if name == "classifier.weight":
            logger.warning("%s knows %d labels, the task %d: the classifier starts anew", folder, there[0], wanted[0])
    return model


# ---------------------------------------------------------------------------------------------- tensors of a run


def whole(tensor: Tensor) -> Tensor:
    """A tensor on the CPU; the shards of a distributed one are gathered (every process has to call)."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().to("cpu", copy=True).contiguous()


def placed(value: Tensor, like: Tensor) -> Tensor:
    """``value`` on the device, and in the shards, of ``like``; dtype and bits stay."""
    if hasattr(like, "device_mesh") and value.shape == like.shape:
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)  # type: ignore[attr-defined]
    return value.to(like.device, copy=True)  # a fresh allocation: sums round by alignment


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights by name; of tied ones the first name only."""
    seen: set[int] = set()
    out = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            out[name] = whole(value)
    return out


@torch.no_grad()
def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into a model in place."""
    state = model.state_dict(keep_vars=True)
    missing = {id(v) for n, v in state.items()} - {id(v) for n, v in state.items() if n in tensors}
    strange = [name for name in tensors if name not in state]
    if missing or strange:
        names = strange or [n for n, v in state.items() if id(v) in missing]
        raise CheckpointError(f"the checkpoint belongs to another model: {', '.join(names[:5])} only in one of the two")
    for name, value in tensors.items():
        if value.shape != state[name].shape:
            raise CheckpointError(
                f"{name} is {list(value.shape)} in the checkpoint and {list(state[name].shape)} in this model"
            )
        state[name].copy_(placed(value, state[name]))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, plain numbers) of an optimizer's state, by "parameter/name"."""
    tensors, numbers = {}, {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = whole(value)
            else:
                numbers[f"{name}/{key}"] = value
    return tensors, numbers


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> None:
    """Put an optimizer's state back, with its own dtypes."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for path, value in [*tensors.items(), *numbers.items()]:
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        on_cpu = isinstance(value, Tensor) and key == "step" and not optimizer.defaults.get("fused")
        moved = value if on_cpu or not isinstance(value, Tensor) else placed(value, parameter)
        optimizer.state[parameter][key] = moved


# -------------------------------------------------------------------------------------------------- files of a run


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"{step:08d}"


def steps_saved(run: Path) -> list[int]:
    """Steps that have a checkpoint folder, valid or not, ascending."""
    folder = run / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def write_checkpoint(run: Path, step: int, files: Mapping[str, Mapping[str, Tensor]], texts: Mapping[str, str]) -> Path:
    """Write a checkpoint whole or not at all. ``files``: name → tensors; ``texts``: name → text."""
    target = checkpoint_path(run, step)
    aside = target.with_name(f".writing-{target.name}-{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        for name, tensors in files.items():
            save_file(dict(tensors), aside / name, metadata={"format": "pt"})
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8")
        hashes = {}
        for name in [*files, *texts]:
            _sync(aside / name)
            hashes[name] = file_hash(aside / name)
        (aside / MANIFEST).write_text(json.dumps({"step": step, "sha256": hashes}, indent=2), encoding="utf-8")
        _sync(aside / MANIFEST)
        _sync(aside)
        if target.exists():  # a step that was repeated, after a damaged checkpoint
            _discard(target)
        os.rename(aside, target)
        _sync(target.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        reason = "the disk is full" if full else str(error)
        left = [s for s in steps_saved(run) if s != step]
        good = f"the last good one is {checkpoint_path(run, left[-1])}" if left else "there is none before it"
        raise CheckpointError(
            f"cannot save the checkpoint of step {step} in {target.parent}: {reason}; {good}"
        ) from error
    return target


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        hashes = dict(manifest["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} is missing or unreadable"
    for name, recorded in hashes.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if file_hash(path / name) != recorded:
            return f"{name} is altered or cut off (its SHA-256 differs)"
    return None


def newest_valid(run: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named in a warning."""
    for step in reversed(steps_saved(run)):
        path = checkpoint_path(run, step)
        problem = damage(path)
        if problem is None:
            return path
        logger.warning("checkpoint %s is damaged: %s; going back to the one before", path, problem)
    return None


def set_aside(run: Path, step: int) -> None:
    """Rename the checkpoints of later steps than this to `aside-STEP`: `tidy`, which keeps the highest steps, would
    keep them in place of those that the run is going to write."""
    for later in [s for s in steps_saved(run) if s > step]:
        path = checkpoint_path(run, later)
        aside = path.with_name(f"aside-{path.name}")
        if aside.exists():
            shutil.rmtree(aside)
        os.rename(path, aside)
        logger.warning("the run goes on from step %d; checkpoint %s, of a later step, is now %s", step, path, aside)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """(weights, optimizer tensors, state) of a checkpoint; its hashes are checked."""
    problem = damage(path)
    if problem is not None:
        raise CheckpointError(f"{path} cannot be used: {problem}")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors"), state


def tidy(run: Path, keep_last: int, keep_every: int | None, keep: set[int]) -> None:
    """Remove checkpoints that nobody asked to keep, and leftovers of writes that were cut off."""
    steps = steps_saved(run)
    kept = {*steps[-max(1, keep_last) :], *keep} | {s for s in steps if keep_every and s % keep_every == 0}
    for step in steps:
        if step not in kept:
            _discard(checkpoint_path(run, step))
    if (run / "checkpoints").is_dir():
        for leftover in (run / "checkpoints").glob(".*-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _discard(path: Path) -> None:
    gone = path.with_name(f".gone-{path.name}-{os.getpid()}")
    os.rename(path, gone)  # first out of sight, so that no half-deleted folder is ever taken for a checkpoint
    shutil.rmtree(gone, ignore_errors=True)


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
