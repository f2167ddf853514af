"""The training loop on one GPU (bf16, compiled): recompiles after warm-up, GPU busy time, loader waits, MFU.

    TOKENMIX_DATA=… PYTHONPATH=src python benchmarks/train_gpu.py        # about 4 minutes on one H200

Real tasks with widely varying lengths, batch 128, through `tokenmix.training` itself, not a copy of its loop:

- base: T5.1.1-base on SAMSum's summaries;
- small: a Transformer of 2 + 2 layers, d 512, on COGS; plain: the same without CUDA graphs, which both others have.

Busy is the share of wall time in which at least one kernel or copy runs on the GPU, from torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tokenmix.training import Callback, RunConfig, run
from tokenmix.training.loop import Trainer


class Watch(Callback):
    """Times the steps first … middle, profiles middle … last, and counts compilations."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.middle, self.last = first, (first + last) // 2, last
        self.result: dict[str, Any] = {}
        self.logs: list[dict[str, Any]] = []

    def on_message(self, text: str) -> None:
        print(text, flush=True)

    def on_log(self, record: dict[str, Any]) -> None:
        self.logs.append(record)

    def on_step(self, step: int, fraction: float) -> None:
        from torch._dynamo.utils import counters

        if step == 1:
            self.frames = counters["stats"]["unique_graphs"]
        if step == self.first:
            self.began = self._now()
        if step == self.middle:
            seconds = (self._now() - self.began) / (self.middle - self.first)
            self.result |= {"step_ms": round(1000 * seconds, 3), "steps_per_second": round(1 / seconds, 1)}
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profiler.start()
            self.began = self._now()
        if step == self.last:
            seconds = self._now() - self.began
            self.profiler.stop()
            self.result["gpu_busy"] = round(busy(self.profiler) / seconds, 4)
            self.result["steps_timed"] = self.middle - self.first
            self.result["graphs_compiled_after_warm_up"] = counters["stats"]["unique_graphs"] - self.frames

    @staticmethod
    def _now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()


def busy(profiler: Any) -> float:
    """Seconds in which the GPU did something: the union of all intervals."""
    spans = sorted(
        (e.start_ns(), e.end_ns())
        for e in profiler.profiler.kineto_results.events()
        if e.device_type() == torch.autograd.DeviceType.CUDA
    )
    total, reached = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e9


def measure(name: str, values: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    """One run of `last` steps."""
    watch = Watch(first, last)
    waits: list[float] = []
    shapes: set[tuple[int, int]] = set()
    fetch = Trainer._fetch

    def timed(self: Trainer, loader: Any) -> Any:
        start = time.perf_counter()
        batch = fetch(self, loader)
        waits.append(time.perf_counter() - start)
        shapes.add(batch.shape)
        return batch

    Trainer._fetch = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        base = {
            "out": folder, "budget": {"steps": last}, "tensorboard": False, "schedule": {"warmup": 10},
            "validation": {"every": 0, "metric": False, "examples": 8}, "checkpoints": {"every": 10**6},
        }  # fmt: skip
        began = time.perf_counter()
        result = run.train(RunConfig.of(base, values), callbacks=[watch])
    Trainer._fetch = fetch  # type: ignore[method-assign]
    late = waits[first:last]
    out = {
        "run": name,
        "configuration": values,
        "parameters": result.parameters,
        "seconds_in_all": round(time.perf_counter() - began, 1),
        "shapes_seen": sorted(shapes),
        "loss_at_end": round(result.loss, 4),
        "mfu": round(watch.logs[-1]["mfu"], 4),
        "loader_wait_ms_mean": round(1000 * sum(late) / len(late), 3),
        **watch.result,
    }
    print(json.dumps(out), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/train-loop-h200.json"))
    parser.add_argument("--base-steps", type=int, default=60)
    parts = ["base", "small", "plain"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="Some of the runs.")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "command": "PYTHONPATH=src python benchmarks/train_gpu.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "runs": [],
    }
    base = {
        "model": {"name": "t5-v1.1-base", "options": {"vocab_size": 32128, "dropout": 0.0}},
        "data": {"task": "samsum", "batch_size": 128, "max_input": 512, "max_target": 128, "buckets": 2},
    }
    sizes = {"d_model": 512, "d_ff": 1024, "heads": 8, "head_dim": 64, "layers": 2, "max_length": 512}
    small = {"model": {"layer": "dot | geglu", "options": sizes}, "data": {"task": "cogs", "batch_size": 128}}
    plan = {
        "base": ("T5.1.1-base on samsum", base, options.base_steps // 3, options.base_steps),
        "small": ("2 + 2 layers on cogs, CUDA graphs", {**small, "device": {"cuda_graphs": True}}, 200, 1200),
        "plain": ("2 + 2 layers on cogs, no CUDA graphs", {**small, "device": {"cuda_graphs": False}}, 200, 800),
    }
    for part in options.only:
        results["runs"].append(measure(*plan[part]))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
