"""One training step of a recipe's models, alone on the GPU: how long it takes, and its largest kernels.

    python -m benchmarks.step remixer-table-4 cogs "T5.1.1 Base" "Remixer Base" --out benchmarks/results/cogs-step-h200.json

Models are compiled and recorded as in training and not adjusted to each other's size. Needs a GPU, and the task's data in
$TOKENMIX_DATA.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tokenmix.compare.comparison import versions
from tokenmix.recipes import get_recipe
from tokenmix.recipes.run import contenders_of, stages_of
from tokenmix.training import RunConfig
from tokenmix.training.config import merge
from tokenmix.training.run import Session, _accelerator, _build

BATCHES, ROUNDS, PROFILED, SHOWN = 32, 6, 20, 15


def measure(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Milliseconds of a step (the mean of 192 after a round of warm-up) and of its kernels."""
    config = RunConfig.of(settings, {"seed": 0, "out": str(folder), "tensorboard": False})
    accelerator, _ = _accelerator(config)
    trainer = Session(config, folder, _build(config, folder, accelerator), accelerator, None, ()).trainer
    start = time.perf_counter()
    trainer.warm_up()
    compiled = time.perf_counter() - start
    loader = trainer.batches.loader(0, 2, pin=True)
    batches = [trainer._fetch(loader) for _ in range(BATCHES)]

    def steps(rounds: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            for batch in batches:
                trainer.step(batch)
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - start) / (rounds * BATCHES)

    steps(1)
    milliseconds = steps(ROUNDS)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for batch in batches[:PROFILED]:
            trainer.step(batch)
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    return {
        "ms_a_step": round(milliseconds, 2),
        "ms_of_kernels": round(sum(k.self_device_time_total for k in kernels) / PROFILED / 1e3, 2),
        "kernels": round(sum(k.count for k in kernels) / PROFILED),
        "seconds_to_compile_and_record": round(compiled),
        "batch": {name: list(tensor.shape) for name, tensor in batches[0].tensors.items()},
        "top": [
            {
                "ms": round(k.self_device_time_total / PROFILED / 1e3, 4),
                "times": k.count / PROFILED,
                "kernel": k.key[:90],
            }
            for k in kernels[:SHOWN]
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("stage")
    parser.add_argument("rows", nargs="+", help="names of rows of the recipe")
    parser.add_argument("--out", type=Path, help="a JSON file; by default the result is printed alone")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and there is none here")
    recipe = get_recipe(given.recipe)
    stage = next(iter(stages_of(recipe, "bench", [given.stage])))
    entries = {entry.name: entry for entry in contenders_of(recipe, "bench", stage, given.rows)}
    models = []
    for row in given.rows:
        body = {"model": {"body": stage.body or recipe.scale("bench").body}}
        with tempfile.TemporaryDirectory() as folder:
            found = measure(merge(body, stage.settings, {"model": entries[row].model}), Path(folder))
        models.append({"model": row, **found})
        print(row, json.dumps({name: found[name] for name in ("ms_a_step", "ms_of_kernels", "kernels")}), flush=True)
    result = {"device": torch.cuda.get_device_name(), "versions": versions(), "models": models}
    if given.out:
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
