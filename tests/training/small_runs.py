"""Small runs for the tests of training."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import torch

from tokenmix.training import RunConfig, train


def tiny(out: Path | str, **changes: Any) -> RunConfig:
    """A run of a few seconds: dropout on, so that random numbers matter; __ in a key stands for the dot."""
    from tokenmix.training.config import dotted, merge

    base = {
        "out": str(out),
        "tensorboard": False,
        "model": {
            "name": "remixer-tiny",
            "options": {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1, "dropout": 0.1},
        },
        "data": {"task": "scan", "limit": 200, "batch_size": 8},
        "budget": {"steps": 12},
        "validation": {"examples": 8, "every": 0, "metric": False},
        "checkpoints": {"every": 3},
        "device": {"device": "cpu"},
        "log_every": 4,
    }
    return RunConfig.of(merge(base, dotted({key.replace("__", "."): value for key, value in changes.items()})))


def weights(run: Path | str) -> dict[str, torch.Tensor]:
    """The final weights of a run."""
    from safetensors.torch import load_file

    return load_file(Path(run) / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name].view(torch.int32), b[name].view(torch.int32)) for name in a)


def start(function: Any, *arguments: Any) -> Any:
    """A process that runs ``function``; quickly, since a server imports torch and tokenmix once and forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tokenmix.training", "tokenmix.evaluation.validation", "tokenmix.generation", "accelerate"]
    )
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def train_in_child(config: dict[str, Any]) -> None:
    """What a killed process was doing."""
    torch.set_num_threads(1)
    train(RunConfig.of(config))


def distributed_child(config: dict[str, Any], rank: int, world: int, port: int, report: str) -> None:
    """One process of several, as torchrun would start it."""
    import json
    import os

    local = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
    }
    os.environ.update({key: str(value) for key, value in {**local, "MASTER_PORT": port}.items()})
    torch.set_num_threads(1)
    from tokenmix.training import run

    seen: dict[str, Any] = {}
    original = run.Session._export

    def look(session: Any) -> None:
        kinds = {type(p).__name__ for p in session.parts.model.parameters()}
        seen.update(
            kinds=sorted(kinds),
            world=torch.distributed.get_world_size(),
            replica=type(session.trainer.replica).__name__,
        )
        original(session)

    run.Session._export = look  # type: ignore[method-assign]
    train(RunConfig.of(config))
    if rank == 0:
        Path(report).write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()
