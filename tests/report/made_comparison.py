"""A made-up comparison and saved models, for tests alone: no number here was measured."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import torch

from tokenmix import create_model
from tokenmix.data.tokenizers import train_tokenizer

ATTACK = "<script>alert(1)</script>"
TEXT = "jump opposite left twice and walk around right thrice"
TARGET = "turn left turn left jump turn left turn left jump walk"
MODELS = {
    "transformer": "dot | geglu",
    "random | geglu": "random | geglu",
    "random + dot | geglu": "random + dot | geglu",
    "dot | remix": "dot | remix",
    ATTACK: "dense | geglu",
}
CATEGORIES = ("length ≤ 8", "length 9–16", "length > 16", ATTACK)


def tokenizer() -> Any:
    return train_tokenizer([TEXT, TARGET], kind="word")


def stir(model: Any, seed: int = 0) -> Any:
    """Weights moved away from their initial values, so that matrices have something to show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(
                torch.randn(weight.shape, generator=generator) * 0.5 * (weight.std() if weight.numel() > 1 else 1)
            )
    return model.eval()


def save_run(folder: Path, preset: str = "t5-v1.1-tiny", **options: Any) -> Path:
    """A folder as a run leaves it: model, configuration, tokenizer."""
    words = tokenizer()
    torch.manual_seed(0)
    model = stir(create_model(preset, vocab_size=len(words), **options))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def comparison(folder: Path, seeds: int = 3, weights: bool = True) -> dict[str, Any]:
    """`comparison.json` in the agreed form, with one failed run; with `weights` the runs can be opened."""
    draw = random.Random(0)
    models = []
    for number, (name, layer) in enumerate(MODELS.items()):
        runs = []
        level = (96.2, 81.0, 97.9, 96.9, 84.3)[number]
        for seed in range(seeds):
            run = folder / "runs" / f"m{number}-s{seed}"
            if weights and seed == 0:
                save_run(run, layer=layer)
            final = level + draw.gauss(0, 0.6)
            curve = [
                {"step": step, "loss": 3.2 * math.exp(-step / 180) + 0.04 + draw.random() * 0.05}
                | ({"metric": final * (1 - math.exp(-step / 160))} if step % 100 == 0 else {})
                for step in range(50, 1001, 50)
            ]
            failed = number == 1 and seed == 2
            runs.append(
                {
                    "seed": seed,
                    "status": "failed" if failed else "done",
                    "error": "loss is not finite at step 412: lower the learning rate <b>now</b>" if failed else None,
                    "folder": str(run),
                    "steps": 1000,
                    "seconds": 61.5,
                    "curve": curve[:8] if failed else curve,
                    "metrics": {} if failed else {"exact_match": final},
                    "categories": {}
                    if failed
                    else {c: max(0.0, final - 9 * k + draw.random()) for k, c in enumerate(CATEGORIES)},
                }
            )
        values = [run["metrics"]["exact_match"] for run in runs if run["metrics"]]
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
        models.append(
            {
                "name": name,
                "layer": layer,
                "decoder_layer": layer,
                "body": "seq2seq",
                "config": {"layer": layer, "d_model": 64, "note": "</script><!--"},
                "parameters": 180_000 + 21_000 * number,
                "flops_forward": 2.1e9 + 1e8 * number,
                "flops_step": 6.3e9 + 3.1e8 * number,
                "steps_per_second": (17.4, 9.1, 8.05, 104.0, 12.2)[number],
                "memory_bytes": 310_000_000 + 1e6 * number,
                "runs": runs,
                "mean": mean,
                "deviation": deviation,
            }
        )
    for model in models:
        other = model is not models[0]
        gap = model["mean"] - models[0]["mean"]
        model |= {
            "difference": gap if other else None,
            "interval": [gap - 1.1, gap + 1.1] if other else None,
            "significant": abs(gap) > 1.1 if other else None,
            "p": 0.01 if other else None,
            "over": f"{seeds} seeds" if other else None,
        }
    result = {
        "task": "scan",
        "form": "text",
        "split": "test",
        "metric": "exact_match",
        "higher_is_better": True,
        "budget": {"steps": 1000, "batch_size": 64},
        "match": {"rule": "none", "meaning": "sizes as given"},
        "baseline": "transformer",
        "command": "tokenmix compare --task scan --models transformer 'random | geglu' --seeds 3",
        "versions": {"tokenmix": "0.1.0", "torch": "2.13.0"},
        "hardware": {"cpus": 2, "gpus": [], "machine": "x86_64", "system": "Linux"},
        "created": "2026-11-16T03:00:00+0000",
        "note": f"made up for a test {ATTACK}",
        "example": {"text": TEXT, "target": TARGET},
        "models": models,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
    return result
