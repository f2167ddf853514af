"""The training loop on one GPU (bf16, compiled): recompiles after warm-up, GPU busy time, loader waits, MFU.

    PYTHONPATH=src python benchmarks/train_gpu.py --out benchmarks/results/train-loop-h200.json        # about 3 minutes

Two runs through `tokenmix.training` itself, not a copy of its loop:

- base: T5.1.1-base on made text-to-text examples of widely varying lengths, batch 128;
- small: remixer-tiny on SCAN (a real task with varying lengths), with CUDA graphs and without.

Busy is the share of wall time in which at least one kernel or copy runs on the GPU, from torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tokenmix.training import Callback, RunConfig, run
from tokenmix.training.loop import Trainer


class Watch(Callback):
    """Profiles a stretch of steps in the middle of a run and counts compilations."""

    def __init__(self, first: int, last: int, profiled: bool = True) -> None:
        self.first, self.last, self.profiled = first, last, profiled
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
            torch.cuda.synchronize()
            if self.profiled:
                self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                self.profiler.start()
            self.began = time.perf_counter()
        if step == self.last:
            torch.cuda.synchronize()
            seconds = time.perf_counter() - self.began
            self.result |= {
                "steps": self.last - self.first,
                "step_ms": round(1000 * seconds / (self.last - self.first), 2),
            }
            self.result["graphs_compiled_after_warm_up"] = counters["stats"]["unique_graphs"] - self.frames
            if self.profiled:
                self.profiler.stop()
                self.result["gpu_busy"] = round(busy(self.profiler) / seconds, 4)


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


def measure(name: str, values: dict[str, Any], first: int, last: int, profiled: bool = True) -> dict[str, Any]:
    """One run of `last` steps."""
    watch = Watch(first, last, profiled)
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


def made_task(folder: Path, examples: int = 4000) -> str:
    """Text to text with inputs of 20 to 500 and targets of 5 to 110 words."""
    draw = random.Random(0)
    words = [f"w{i}" for i in range(2000)]
    with open(folder / "made.jsonl", "w") as file:
        for _ in range(examples):
            count = draw.randint(20, 500)
            text = draw.choices(words, k=count)
            file.write(json.dumps({"q": " ".join(text), "a": " ".join(text[: max(5, count * 110 // 500)])}) + "\n")
    return f"file:{folder / 'made.jsonl'}?input=q&target=a"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/train-loop-h200.json"))
    parser.add_argument("--base-steps", type=int, default=60)
    parser.add_argument("--only", choices=["base", "small"], help="One of the two parts.")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "command": "PYTHONPATH=src python benchmarks/train_gpu.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "runs": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        task = made_task(Path(folder))
        base = {
            "model": {"name": "t5-v1.1-base", "options": {"vocab_size": 32128, "dropout": 0.0}},
            "data": {
                "task": task,
                "tokenizer": "word",
                "batch_size": 128,
                "max_input": 512,
                "max_target": 128,
                "buckets": 2,
            },
        }
        small = {"model": {"name": "remixer-tiny"}, "data": {"task": "scan", "batch_size": 128}}
        graphs = {**small, "device": {"cuda_graphs": True}}
        plain = {**small, "device": {"cuda_graphs": False}}
        plan = [
            ("t5-v1.1-base, varying lengths", base, options.base_steps // 3, options.base_steps, True),
            ("remixer-tiny on scan, CUDA graphs", graphs, 100, 400, True),
            ("remixer-tiny on scan, no CUDA graphs", plain, 100, 400, True),
        ]
        wanted = {"base": plan[:1], "small": plan[1:], None: plan}[options.only]
        for name, values, first, last, profiled in wanted:
            results["runs"].append(measure(name, values, first, last, profiled))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
