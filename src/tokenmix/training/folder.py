"""The folder of a run: what is written there, and where a run that was killed goes on.

    RUN/
        config.yaml              everything: `tokenmix train --config RUN/config.yaml --out OTHER` runs it again
        environment.json         versions, hardware, threads, seed, git state, command
        metrics.jsonl            one record per line: training, validation
        tensorboard/             the same as events
        checkpoints/STEP/        to go on from (see `tokenmix.training.checkpoint`)
        checkpoints/aside-STEP/  damaged, or of a future that was left by resuming from an earlier step
        faults/step-STEP/        batch.safetensors and report.json of a step whose loss was not finite
        .lock                    locked while a process trains here (see `tokenmix.training.faults`)
        config.json              of the model; generation_config.json beside it if the model generates
        tokenizer.json, …        the tokenizer, if the task has text
        model.safetensors        the weights, at the end: now RUN opens with from_pretrained

A run that is resumed keeps its settings, but for those in ``MAY_CHANGE`` and the number of data workers; metrics after
the checkpoint it goes on from are dropped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tokenmix.training.build import Parts
from tokenmix.training.checkpoint import CheckpointError, checkpoint_path, newest_valid, steps_saved
from tokenmix.training.config import RunConfig, read_layer
from tokenmix.training.faults import TrainingFault
from tokenmix.training.progress import Callback

logger = logging.getLogger(__name__)
MAY_CHANGE = {
    "out",
    "resume",
    "log_every",
    "tensorboard",
    "budget",
    "validation",
    "checkpoints",
    "preset",
}  # on resuming


def starting_point(config: RunConfig, folder: Path) -> Path | None:
    """The checkpoint to go on from, or None to begin."""
    saved = steps_saved(folder)
    if config.resume == "no":
        if saved or (folder / "model.safetensors").exists():
            raise TrainingFault(f"{folder} holds a run already; go on with --resume auto, or choose another --out")
        return None
    if (folder / "config.yaml").exists():
        _check_same(config, read_layer(folder / "config.yaml"), folder)
    if config.resume == "auto":
        newest = newest_valid(folder)
        if saved and newest is None:
            raise CheckpointError(
                f"none of the checkpoints in {folder / 'checkpoints'} is whole; to begin again, choose another --out"
            )
        return newest
    if not config.resume.isdigit() or int(config.resume) not in saved:
        raise ValueError(f"resume={config.resume!r}: expected no, auto or one of the steps saved: {saved}")
    return checkpoint_path(folder, int(config.resume))


def _check_same(config: RunConfig, before: dict[str, Any], folder: Path) -> None:
    now, defaults = config.to_dict(), RunConfig().to_dict()
    changed = []
    for name, value in now.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(defaults[name], dict):  # settings which that version did not have
            old = {**{k: v for k, v in defaults[name].items() if k in value}, **old}
        if name in MAY_CHANGE or value == old:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            changed += [
                f"{name}.{k}: {old.get(k)!r} → {v!r}" for k, v in value.items() if old.get(k) != v and k != "workers"
            ]
        else:
            changed.append(f"{name}: {old!r} → {value!r}")
    if changed:
        raise ValueError(
            f"{folder} was begun with other settings ({'; '.join(changed)}); resume with the same, or choose "
            "another --out"
        )


def write_folder(config: RunConfig, folder: Path, parts: Parts, accelerator: Any, precision: str) -> None:
    """What is known before the first step: configuration, model configuration, environment."""
    config.write(folder / "config.yaml")
    parts.model.config.architectures = [type(parts.model).__name__]
    parts.model.config.save_pretrained(folder)
    if getattr(parts.model, "generation_config", None) is not None and parts.model.can_generate():
        parts.model.generation_config.save_pretrained(folder)
    text = json.dumps(environment(config, accelerator, precision), indent=2)
    (folder / "environment.json").write_text(text, encoding="utf-8")


def environment(config: RunConfig, accelerator: Any, precision: str) -> dict[str, Any]:
    """Versions, hardware, git state and command: what a result depends on beside its configuration."""
    import importlib.metadata

    versions = {}
    for package in ("tokenmix", "torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)

    def git(*arguments: str) -> str | None:
        try:
            out = subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=10, cwd=Path(__file__).parent
            )
            return out.stdout.strip() if out.returncode == 0 else None
        except (OSError, subprocess.TimeoutExpired):
            return None

    return {
        "versions": {"python": platform.python_version(), **versions},
        "device": device_name(accelerator.device),
        "processes": accelerator.num_processes,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.platform(),
        "seed": config.seed,
        "git": {"commit": git("rev-parse", "HEAD"), "changed": (git("status", "--porcelain") or "").splitlines()[:50]},
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the number of CPU threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


class Metrics(Callback):
    """metrics.jsonl and TensorBoard events; what lies behind the step that a run goes on from is dropped."""

    def __init__(self, folder: Path, step: int, tensorboard: bool) -> None:
        path = folder / "metrics.jsonl"
        kept = (
            [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
            if path.exists()
            else []
        )
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
        self.events: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter

                self.events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
            except ImportError:
                logger.warning("no TensorBoard events: the package tensorboard is not installed")

    def on_log(self, record: dict[str, Any]) -> None:
        self._write(record, "train")

    def on_validation(self, record: dict[str, Any]) -> None:
        self._write(record, "validation")

    def _write(self, record: dict[str, Any], group: str) -> None:
        self.file.write(json.dumps({**record, "time": time.time()}) + "\n")
        self.file.flush()
        if self.events is not None:
            for name, value in record.items():
                if name not in ("step", "kind") and isinstance(value, (int, float)):
                    self.events.add_scalar(f"{group}/{name}", value, record["step"])

    def close(self) -> None:
        self.file.close()
        if self.events is not None:
            self.events.close()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # a line that was cut off
