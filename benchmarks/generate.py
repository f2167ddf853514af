"""Generation beside Hugging Face's `generate`, on the same converted weights, in one run.

    python -m benchmarks.generate --device cpu      # T5.1.1-small, float32, two cores; some 3 minutes
    python -m benchmarks.generate --device cuda     # T5.1.1-base, bf16, one GPU; a minute

Writes benchmarks/results/generate-cpu.json or generate-h200.json. Bars: on an H200, batch 64, input 512, 64 new tokens,
≥ 15 times Hugging Face for greedy search and ≥ 10 times for beam 4 (length penalty 0.6); on two CPU cores, batch 1 and
16, input 64, 32 new tokens, ≥ 1.3 times. Weights are random, so no row ends early: both sides make every token. The two
take turns, after one call each that compiles and captures; a figure is the fastest turn (other work on the machine only
slows a turn down), and the median over the turns of their ratio stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # threads that wait leave a shared machine to others; for both sides

import torch
import transformers
from transformers import T5Config, T5ForConditionalGeneration

import tokenmix
from tokenmix.generation import generate
from tokenmix.models.convert import from_transformers

RESULTS = Path(__file__).parent / "results"
SIZES = {
    "small": dict(d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6),
    "base": dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12),
}
# (batch, beams)
CASES = {"cpu": [(1, 1), (16, 1), (1, 4), (16, 4)], "cuda": [(64, 1), (64, 4), (1, 1), (1, 4)]}
BARS = {("cpu", 1, 1): 1.3, ("cpu", 16, 1): 1.3, ("cuda", 64, 1): 15.0, ("cuda", 64, 4): 10.0}


def make_models(size: str, device: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """A random T5.1.1 of Hugging Face's and the same as ours."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32128, feed_forward_proj="gated-gelu", decoder_start_token_id=0, dropout_rate=0.0, **SIZES[size]
    )
    theirs = T5ForConditionalGeneration(config).eval().to(device=device, dtype=dtype)
    return theirs, from_transformers(theirs).eval()


def seconds(call: Callable[[], Any], device: str) -> float:
    """Wall time of one call, the device's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    theirs: Any, ours: Any, device: str, batch: int, beams: int, length: int, new: int, turns: int
) -> dict[str, Any]:
    """One row of the table."""
    ids = torch.randint(3, 32000, (batch, length), device=device)
    options: dict[str, Any] = {"max_new_tokens": new, "num_beams": beams, "do_sample": False}
    if beams > 1:
        options["length_penalty"] = 0.6
    theirs.generation_config.eos_token_id = None

    def hugging_face() -> torch.Tensor:
        return theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)

    def tokenmix_() -> torch.Tensor:
        return generate(ours, ids, eos_token_id=(), **options).sequences

    first, second = hugging_face(), tokenmix_()
    times: dict[str, list[float]] = {"hf": [], "ours": []}
    for _ in range(turns):
        times["hf"].append(seconds(hugging_face, device))
        times["ours"].append(seconds(tokenmix_, device))
    hf, own = (min(times[name]) for name in ("hf", "ours"))
    ratio = statistics.median(a / b for a, b in zip(times["hf"], times["ours"], strict=True))
    return {
        "batch": batch,
        "beams": beams,
        "input": length,
        "new_tokens": new,
        "hf_tokens_per_s": round(batch * new / hf, 1),
        "ours_tokens_per_s": round(batch * new / own, 1),
        "times_faster": round(hf / own, 2),
        "times_faster_median": round(ratio, 2),
        "bar": BARS.get((device, batch, beams)),
        "hf_ms": round(1000 * hf, 2),
        "ours_ms": round(1000 * own, 2),
        "ours_ms_per_token": round(1000 * own / new, 3),
        "same_tokens": round(float((first == second).float().mean()), 4),
        "turns": turns,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--turns", type=int, default=None, help="turns of each side (default: 5)")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    device = given.device
    cpu = device == "cpu"
    if cpu:
        torch.set_num_threads(2)
    theirs, ours = make_models("small" if cpu else "base", device, torch.float32 if cpu else torch.bfloat16)
    path = given.out or RESULTS / ("generate-cpu.json" if cpu else "generate-h200.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = {module.__name__: module.__version__ for module in (tokenmix, torch, transformers)}
    result: dict[str, Any] = {
        "command": f"python -m benchmarks.generate --device {device}",
        "model": "T5.1.1-small, float32" if cpu else "T5.1.1-base, bfloat16",
        "machine": platform.processor() or platform.machine() if cpu else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads() if cpu else None,
        "versions": versions,
        "rows": [],
    }
    for batch, beams in CASES[device]:
        row = compare(theirs, ours, device, batch, beams, 64 if cpu else 512, 32 if cpu else 64, given.turns or 5)
        result["rows"].append(row)
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(
            f"batch {batch:3} beams {beams}: Hugging Face {row['hf_tokens_per_s']:9.1f} tok/s, "
            f"ours {row['ours_tokens_per_s']:9.1f} tok/s, {row['times_faster']:.2f} times; "
            f"{100 * row['same_tokens']:.1f}% same tokens",
            flush=True,
        )


if __name__ == "__main__":
    main()
