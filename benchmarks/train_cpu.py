"""Training steps on a CPU: ours against Hugging Face's on the same cores, and the cost of the loop around the model.

    python benchmarks/train_cpu.py          # 5 minutes on two idle cores; writes benchmarks/results/train-cpu.json

Steps of the two models are taken in turn, so that whatever else the machine does hits both alike; reported is the
median of the per-round ratios, of wall time and of CPU time (the second is steadier on a machine that others use; with
`--threads 1` no waiting is in it). A step is forward, backward, clipping and AdamW, at fp32, on the same ids.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from tokenmix.models import TokenmixPreTrainedModel, create_model
from tokenmix.training.optimizers import clip

BATCH, INPUTS, TARGETS = 8, 128, 32


def t5_pair(dropout: float) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """T5.1.1-small, ours and theirs, and a batch with padding."""
    theirs = T5ForConditionalGeneration(
        T5Config(
            vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=dropout, decoder_start_token_id=0,
        )
    )  # fmt: skip
    # transformers 5 ties T5's embeddings whatever the configuration says; T5.1.1 has its own output matrix
    theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    ours = create_model("t5-v1.1-small", dropout=dropout)
    ids, labels = torch.randint(3, 32000, (BATCH, INPUTS)), torch.randint(3, 32000, (BATCH, TARGETS))
    mask = (torch.arange(INPUTS) < torch.linspace(INPUTS // 2, INPUTS, BATCH)[:, None]).long()
    return ours, theirs, {"input_ids": ids, "attention_mask": mask, "labels": labels}


def bert_pair(dropout: float) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """A BERT of 8 layers and width 512 with its masked LM head."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048}
    theirs = BertForMaskedLM(BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    ours = create_model("bert-base", d_model=512, layers=8, heads=8, d_ff=2048, dropout=dropout)
    ids = torch.randint(3, 30000, (BATCH, INPUTS))
    mask = (torch.arange(INPUTS) < torch.linspace(INPUTS // 2, INPUTS, BATCH)[:, None]).long()
    labels = torch.where(torch.rand(BATCH, INPUTS) < 0.15, ids, -100)
    return ours, theirs, {"input_ids": ids, "attention_mask": mask, "labels": labels}


def stepper(model: Any, batch: dict[str, torch.Tensor]) -> Callable[[], tuple[float, float]]:
    """A function that takes one step and gives its seconds: on the wall, and of the CPU."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ours = isinstance(model, TokenmixPreTrainedModel)
    options = {"return_logits": False} if ours else {}  # as our loop trains

    def step() -> tuple[float, float]:
        start, cpu = time.perf_counter(), time.process_time()
        model(**batch, **options).loss.backward()
        clip(optimizer, 1.0) if ours else torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start, time.process_time() - cpu

    return step


def compare(
    make: Callable[[float], tuple[Any, Any, dict[str, torch.Tensor]]], dropout: float, rounds: int
) -> dict[str, Any]:
    """Steps in turn: medians, and the median of theirs / ours."""
    torch.manual_seed(0)
    ours, theirs, batch = make(dropout)
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    our_step, their_step = stepper(ours, batch), stepper(theirs, batch)
    for _ in range(2):
        our_step(), their_step()
    times = [(our_step(), their_step()) for _ in range(rounds)]
    result: dict[str, Any] = {
        "batch": BATCH, "length": INPUTS, "targets": TARGETS if make is t5_pair else None,
        "dropout": dropout, "rounds": rounds, "parameters": {"ours": counts[0], "huggingface": counts[1]},
    }  # fmt: skip
    for kind, name in enumerate(("wall", "cpu")):
        ours_s, theirs_s = [a[kind] for a, _ in times], [b[kind] for _, b in times]
        ratios = sorted(b / a for a, b in zip(ours_s, theirs_s, strict=True))
        result[name] = {
            "ours_ms": round(1000 * statistics.median(ours_s), 1),
            "huggingface_ms": round(1000 * statistics.median(theirs_s), 1),
            "times_as_fast": round(statistics.median(ratios), 3),
            "quartiles": [round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)],
        }
    return result


def overhead(preset: str, steps: int) -> dict[str, Any]:
    """The share of the loop's time that is spent outside the model's step: data, logging, counting, callbacks."""
    from tokenmix.training import RunConfig, run
    from tokenmix.training.loop import Trainer

    inside, bounds = [], []
    original = Trainer.step

    def timed(self: Trainer, batch: Any) -> Any:
        start = time.perf_counter()
        loss = original(self, batch)
        bounds.append((start, time.perf_counter()))
        inside.append(bounds[-1][1] - start)
        return loss

    Trainer.step = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        values = {
            "out": folder, "model": {"name": preset}, "data": {"task": "scan"}, "budget": {"steps": steps},
            "validation": {"every": 0, "metric": False, "examples": 8}, "checkpoints": {"every": 10**6},
        }  # fmt: skip
        run.train(RunConfig.of(values))
    Trainer.step = original  # type: ignore[method-assign]
    start = steps // 2  # FLOPs of every shape are counted by then
    wall = bounds[-1][1] - bounds[start][0]
    return {
        "model": preset, "task": "scan", "batch": 32, "steps": steps - start,
        "step_ms": round(1000 * wall / (steps - start), 2),
        "outside_the_model": round(1 - sum(inside[start:]) / wall, 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/train-cpu.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {
        "command": "python benchmarks/train_cpu.py",
        "machine": platform.processor() or platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load_at_start": round(os.getloadavg()[0], 2),
        "t5_v1_1_small": [],
        "bert_8_layers_512": [],
        "loop": [],
    }
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("t5_v1_1_small", lambda: compare(t5_pair, 0.0, options.rounds)),
        ("bert_8_layers_512", lambda: compare(bert_pair, 0.0, options.rounds)),
        ("loop", lambda: overhead("t5-v1.1-tiny", 200)),
        ("t5_v1_1_small", lambda: compare(t5_pair, 0.1, options.rounds)),
        ("bert_8_layers_512", lambda: compare(bert_pair, 0.1, options.rounds)),
        ("loop", lambda: overhead("remixer-tiny", 200)),
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, measure in parts:
        result[name].append(measure())
        print(name, json.dumps(result[name][-1]), flush=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
