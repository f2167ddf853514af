"""What bucketing by length costs in quality: a small Transformer on COGS, batches of four buckets against random ones.

    TOKENMIX_DATA=… PYTHONPATH=src python benchmarks/batches_cpu.py        # about 35 minutes on two cores

Writes benchmarks/results/batches-cogs-cpu.json: exact match on 420 sentences of the generalisation set every 1,000 steps,
and on 300 of the validation set at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tokenmix.evaluation.evaluate import evaluate
from tokenmix.training import Callback, RunConfig, train

SIZES = {"d_model": 128, "d_ff": 256, "heads": 4, "layers": 2, "tie_embeddings": True}
REGULARISATION = {"dropout": 0.1, "attention_dropout": 0.0}
RUN: dict[str, Any] = {
    "model": {"layer": "dot | geglu", "body": "seq2seq", "options": {**SIZES, **REGULARISATION}},
    "data": {"task": "cogs", "batch_size": 64},
    "budget": {"steps": 3000},
    "optimizer": {"name": "adamw", "lr": 1e-3, "clip": 1.0},
    "schedule": {"name": "constant", "warmup": 0.02},
    "validation": {"every": 1000, "split": "gen", "examples": 420},
    "device": {"device": "cpu"},
    "tensorboard": False,
}


class Curve(Callback):
    """Keeps the exact match of every validation."""

    def __init__(self) -> None:
        self.points: dict[int, float] = {}

    def on_validation(self, record: dict[str, Any]) -> None:
        self.points[record["step"]] = round(record["exact_match"], 2)
        print(record["step"], record["exact_match"], flush=True)


def measure(buckets: int) -> dict[str, Any]:
    """One run of three thousand steps."""
    curve = Curve()
    with tempfile.TemporaryDirectory() as folder:
        result = train(RunConfig.of(RUN, {"out": folder, "data": {"buckets": buckets}}), callbacks=[curve])
        found = next(evaluate([folder], ["cogs"], split="validation", limit=300))
    return {
        "buckets": buckets,
        "seconds": round(result.seconds, 1),
        "generalisation_exact_match": curve.points,
        "validation_exact_match": round(found.metrics["exact_match"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "batches-cogs-cpu.json")
    options = parser.parse_args()
    runs = [measure(buckets) for buckets in (4, 1)]
    command = "TOKENMIX_DATA=… PYTHONPATH=src python benchmarks/batches_cpu.py"
    options.out.write_text(json.dumps({"command": command, "run": RUN, "runs": runs}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
