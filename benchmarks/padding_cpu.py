"""What leaving out padding saves in a training step on a CPU: random batches of COGS, with and without it, in turn.

    TOKENMIX_DATA=… PYTHONPATH=src python benchmarks/padding_cpu.py

Writes `benchmarks/results/padding-cpu.json`.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from unittest import mock

import torch

from tokenmix.models import TokenmixConfig, create_model
from tokenmix.training import RunConfig
from tokenmix.training.batches import Batches
from tokenmix.training.build import build

SIZES = {"d_model": 256, "d_ff": 512, "heads": 4, "layers": 2, "dropout": 0.1, "tie_embeddings": True}
LAYERS = ("dot | geglu", "dot | remix", "random + dot | geglu")
RESULT = Path(__file__).parent / "results" / "padding-cpu.json"
ROUNDS = 11


def main() -> None:
    """Medians of the steps, and of the ratios of neighbours."""
    torch.set_num_threads(2)
    run = RunConfig.of({"model": {"layer": LAYERS[0], "options": SIZES}, "data": {"task": "cogs", "batch_size": 64}})
    parts = build(run)
    batches = Batches(parts.examples, 64, buckets=1, exact=True)
    shapes = [batches[n].tensors["labels"].shape for n in range(ROUNDS)]
    real = sum(int((batches[n].tensors["labels"] >= 0).sum()) for n in range(ROUNDS)) / sum(s.numel() for s in shapes)
    rows = []
    for layer in LAYERS:
        torch.manual_seed(0)
        model = create_model(TokenmixConfig(**{**parts.model.config.to_dict(), "layer": layer, "decoder_layer": layer}))
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)

        def step(number: int) -> float:
            start = time.perf_counter()
            model(**batches[number].tensors, return_logits=False).loss.backward()  # noqa: B023
            optimizer.step()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            return 1000 * (time.perf_counter() - start)

        taken = []
        for number in range(-2, ROUNDS):
            with mock.patch("tokenmix.models.stack.real_rows", return_value=None):
                padded = step(max(0, number))
            taken.append((step(max(0, number)), padded))
        taken = taken[2:]
        rows.append(
            {
                "layer": layer,
                "ms": round(statistics.median(a for a, _ in taken)),
                "ms_with_padding": round(statistics.median(b for _, b in taken)),
                "times_as_fast": round(statistics.median(b / a for a, b in taken), 2),
            }
        )
        print(rows[-1])
    result = {
        "command": "TOKENMIX_DATA=… PYTHONPATH=src python benchmarks/padding_cpu.py",
        "sizes": {**SIZES, "batch": 64},
        "threads": 2,
        "torch": torch.__version__,
        "real_share_of_targets": round(real, 3),
        "rows": rows,
    }
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
