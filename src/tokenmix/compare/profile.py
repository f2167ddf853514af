"""What a model costs: parameters by part, FLOPs, steps a second, memory, share of peak, and growth with length.

>>> found = profile(preset_config("remixer-tiny"), batch=8, length=64)
>>> found["parameters"]["total"], found["steps_per_second"]
(263808, 41.2)
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokenmix.compare.plan import slug
from tokenmix.compare.worker import die_with, reset_peak_memory
from tokenmix.data.shard_writer import write_json
from tokenmix.devices import chosen_device
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.counting import count_parameters, forward_flops
from tokenmix.models.create import create_model, plain
from tokenmix.training.faults import FolderLock
from tokenmix.training.flops import peak_flops
from tokenmix.training.loop import memory_used


def profile(
    config: TokenmixConfig,
    *,
    batch: int = 8,
    length: int | None = None,
    target_length: int | None = None,
    steps: int = 10,
    rounds: int = 3,
    head: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    compile: bool | None = None,
    turn: AbstractContextManager[Any] | None = None,
) -> dict[str, Any]:
    """Count and time training steps (forward, backward, AdamW) on random input of full length.

    Backward takes twice the arithmetic of forward: each product has two in its gradient. ``steps`` of 0 only counts.
    ``turn`` is entered once the model is compiled and left when it is timed: models that compile side by side take turns.
    """
    place = chosen_device(device)
    precision = precision if precision != "auto" else "bf16" if place.type == "cuda" else "fp32"
    length, target_length = _lengths(config, length, target_length)
    parameters = count_parameters(config, head)
    forward = forward_flops(config, length, target_length, head=head)
    found: dict[str, Any] = {
        "layer": config.layer,
        "decoder_layer": config.decoder_layer,
        "body": config.body,
        "batch": batch,
        "length": length,
        "target_length": target_length,
        "parameters": parameters.as_dict(),
        "flops_forward": forward.as_dict(),
        "flops_backward": 2 * forward.total,
        "flops_step": 3 * batch * forward.total,
        "device": torch.cuda.get_device_name(place)
        if place.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "precision": precision,
        "steps_per_second": None,
        "samples": [],
        "memory_bytes": None,
        "peak_share": None,
    }
    if steps < 1:
        return found
    compile = compile if compile is not None else place.type == "cuda"
    times, memory = timed(config, batch, length, target_length, steps, rounds, head, place, precision, compile, turn)
    found["samples"] = [1 / seconds for seconds in times]
    found["steps_per_second"] = 1 / statistics.median(times)
    found["memory_bytes"] = memory
    found["peak_share"] = found["flops_step"] * found["steps_per_second"] / peak_flops(place, precision)
    return found


def timed(
    config: TokenmixConfig,
    batch: int,
    length: int,
    target_length: int | None,
    steps: int,
    rounds: int,
    head: str | None,
    place: torch.device,
    precision: str,
    compile: bool,
    turn: AbstractContextManager[Any] | None = None,
) -> tuple[list[float], int]:
    """(seconds of a training step in each round, peak memory in bytes)."""
    reset_peak_memory()
    torch.manual_seed(0)
    model: Any = create_model(config, head=head)
    model = model.to(place).train()
    quiet = ExitStack()
    wait = _once(lambda: quiet.enter_context(turn or nullcontext()))
    called: Any = compiled(model, wait) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=place.type == "cuda")
    inputs = example_batch(config, batch, length, target_length, place)

    def step() -> None:
        with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16"):
            out = called(**inputs)
            loss = out.loss if getattr(out, "loss", None) is not None else out.logits.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with quiet:
        if not compile:
            wait()
        for _ in range(3 if place.type == "cuda" else 1):
            step()
        _wait(place)
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            for _ in range(steps):
                step()
            _wait(place)
            times.append((time.perf_counter() - started) / steps)
    return times, round(memory_used(place) * 1e9)


def compiled(model: nn.Module, wait: Callable[[], Any]) -> Any:
    """torch.compile of forward and backward at once, in the first call; before anything of it runs, ``wait`` is called."""

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx

        with config.patch(force_non_lazy_backward_lowering=True):
            code = compile_fx(graph, inputs)
        wait()
        return code

    return torch.compile(model, backend=backend)


def _once(call: Callable[[], Any]) -> Callable[[], None]:
    """The call, made the first time only."""
    left = [call]

    def first() -> None:
        if left:
            left.pop()()

    return first


def example_batch(
    config: TokenmixConfig, batch: int, length: int, target_length: int | None, place: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Random input of a model's training step."""
    if config.body == "vision":
        pixels = torch.zeros(batch, config.channels, config.image_size, config.image_size, device=place)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device=place)}
    low = min(2, config.vocab_size - 1)
    ids = torch.randint(low, config.vocab_size, (batch, length), device=place)
    if config.body == "seq2seq":
        return {
            "input_ids": ids,
            "labels": torch.randint(low, config.vocab_size, (batch, target_length or length), device=place),
        }
    return {"input_ids": ids, "labels": ids.clone()}


def length_curve(
    config: TokenmixConfig, lengths: Sequence[int], *, batch: int = 8, steps: int = 5, rounds: int = 3, **options: Any
) -> dict[str, Any]:
    """Seconds a step over lengths, and the exponent e of time ~ length^e fitted to the upper half of them.

    Parameters that depend on length are made for the longest. A seq2seq model's targets are as long as its inputs.
    """
    if config.body == "vision":
        raise ValueError("a vision model sees whole images; there is no curve over lengths")
    if len(lengths) < 2 or min(lengths) < 1:
        raise ValueError(f"a curve needs at least two lengths, each at least 1; got {list(lengths)}")
    lengths = sorted(lengths)
    roomy = TokenmixConfig(**{**plain(config), "max_length": max(*lengths, config.max_length)})
    points = []
    for length in lengths:
        found = profile(roomy, batch=batch, length=length, target_length=length, steps=steps, rounds=rounds, **options)
        points.append(
            {
                "length": length,
                "seconds": 1 / found["steps_per_second"],
                "flops_step": found["flops_step"],
                "memory_bytes": found["memory_bytes"],
            }
        )
    upper = points[-max(2, math.ceil(len(points) / 2)) :]
    return {"points": points, "exponent": exponent([(p["length"], p["seconds"]) for p in upper])}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log y over log x by least squares.

    >>> round(exponent([(1, 3.0), (2, 12.0), (4, 48.0)]), 6)
    2.0
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    return float(statistics.linear_regression(xs, ys).slope)


def _lengths(config: TokenmixConfig, length: int | None, target: int | None) -> tuple[int, int | None]:
    if config.body == "vision":
        return config.max_length, None
    length = length or config.max_length
    for name, value in (("length", length), ("target length", target or 0)):
        if value > config.max_length:
            raise ValueError(
                f"{name} {value} exceeds max_length={config.max_length} of this model; give --set max_length={value}"
            )
    return length, (target or length) if config.body == "seq2seq" else None


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


# ---------------------------------------------------------------------------------------------------- several models


def profile_all(
    configs: Mapping[str, TokenmixConfig], settings: Mapping[str, Any], *, folder: Path, turns: Path, jobs: int = 1
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model's profile, as it comes. With ``jobs`` above 1, so many compile at a time, each in a process of its own, and
    are timed one after the other, also with those of other commands that name the same ``turns`` (a folder)."""
    if jobs == 1:
        for name, config in configs.items():
            yield name, profile(config, **settings)
        return
    with ThreadPoolExecutor(jobs) as pool:
        asked = {
            pool.submit(_in_process, config, settings, folder / slug(name), turns): name
            for name, config in configs.items()
        }
        for future in as_completed(asked):
            yield asked[future], future.result()


def _in_process(config: TokenmixConfig, settings: Mapping[str, Any], place: Path, turns: Path) -> dict[str, Any]:
    place.mkdir(parents=True, exist_ok=True)
    asked, found, log = place / "asked.json", place / "found.json", place / "log.txt"
    write_json(asked, {"model": plain(config), "settings": dict(settings), "turns": str(turns)})
    command = [sys.executable, "-m", "tokenmix.compare.profile", str(os.getpid()), str(asked), str(found)]
    with open(log, "w", encoding="utf-8") as out:
        code = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"measuring {place.name} ended with {code}: {' '.join(last) or 'no message'} ({log})")
    return json.loads(found.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    """`python -m tokenmix.compare.profile PARENT ASKED.json FOUND.json`: one model, timed when its turn has come."""
    parent, *paths = arguments
    die_with(int(parent))
    asked, found = map(Path, paths)
    given = json.loads(asked.read_text(encoding="utf-8"))
    turn = _turn(Path(given["turns"]))
    write_json(found, profile(TokenmixConfig(**given["model"]), **given["settings"], turn=turn))
    return 0


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    sys.stdout.write("waits for its turn\n")
    sys.stdout.flush()
    with FolderLock(folder, waits=True):
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
