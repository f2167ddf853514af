"""Models on a CPU: ours against Hugging Face's and against plain PyTorch on the same cores, and what the loop costs.

    python benchmarks/train_cpu.py          # 10 minutes on two idle cores; writes benchmarks/results/train-cpu.json

Steps of the two models are taken in turn, so that whatever else the machine does hits both alike; reported is the
median of the per-round ratios, of wall time and of CPU time. A training step is forward, backward, clipping and AdamW,
at fp32, on the same ids. Both sides give the same loss before anything is timed. Bars:

- T5.1.1-small, batch 8, 128/32: at least 1.15 times as fast as Hugging Face; an encoder no slower than its BERT;
- Synthesizers and a Remixer of that size: at least 1.3 times as fast as their equations in plain PyTorch;
- gMLP-S/16 forward: at least 1.2 times as fast as timm's formulation written plainly;
- the loop around the model takes at most 3% of the time.

A quarter of the input tokens are padding, as in a batch of texts of different lengths; rows "no padding" have none.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.plain import PlainGmlp, PlainSeq2Seq
from tokenmix.models import TokenmixPreTrainedModel, create_model
from tokenmix.models.convert import from_transformers
from tokenmix.training.optimizers import clip

RESULTS = Path(__file__).parent / "results" / "train-cpu.json"
BATCH, INPUTS, TARGETS = 8, 128, 32


Pair = tuple[Any, Any, dict[str, torch.Tensor]]


def texts(padding: bool) -> dict[str, torch.Tensor]:
    """A batch of inputs, from half of the length up to all of it where there is padding, and targets."""
    ids, labels = torch.randint(3, 30000, (BATCH, INPUTS)), torch.randint(3, 30000, (BATCH, TARGETS))
    shortest = INPUTS // 2 if padding else INPUTS
    mask = (torch.arange(INPUTS) < torch.linspace(shortest, INPUTS, BATCH)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def t5_pair(dropout: float, padding: bool) -> Pair:
    """T5.1.1-small, ours and Hugging Face's with our weights."""
    theirs = T5ForConditionalGeneration(
        T5Config(
            vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=dropout, decoder_start_token_id=0,
        )
    )  # fmt: skip
    # transformers 5 ties T5's embeddings whatever the configuration says; T5.1.1 has its own output matrix
    theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    return from_transformers(theirs, dropout=dropout), theirs, texts(padding)


def bert_pair(dropout: float, padding: bool) -> Pair:
    """A BERT of 8 layers and width 512 with its masked LM head, ours with the weights of Hugging Face's."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048}
    theirs = BertForMaskedLM(BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    batch = texts(padding)
    chosen = (torch.rand(BATCH, INPUTS) < 0.15) & batch["attention_mask"].bool()
    return from_transformers(theirs), theirs, batch | {"labels": batch["input_ids"].masked_fill(~chosen, -100)}


def plain_pair(layer: str) -> Callable[[float, bool], Pair]:
    """A model as large as T5.1.1-small with other layers, ours and its equations in plain PyTorch."""

    def pair(dropout: float, padding: bool) -> Pair:
        ours = create_model("t5-v1.1-small", layer=layer, decoder_layer=layer, max_length=INPUTS, dropout=dropout)
        return ours, PlainSeq2Seq(copy.deepcopy(ours)), texts(padding)

    return pair


def stepper(model: Any, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """A function that takes one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ours = isinstance(model, TokenmixPreTrainedModel)
    options = {"return_logits": False} if ours else {}  # as our loop trains

    def step() -> None:
        model(**batch, **options).loss.backward()
        clip(optimizer, 1.0) if ours else torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def training(make: Callable[[float, bool], Pair], dropout: float, rounds: int, padding: bool = True) -> dict[str, Any]:
    """Training steps of a pair in turn."""
    torch.manual_seed(0)
    ours, theirs, batch = make(dropout, padding)
    with torch.no_grad():
        losses = [float(model.eval()(**batch).loss) for model in (ours, theirs)]
    assert abs(losses[0] - losses[1]) < 1e-3, losses
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    about = {"batch": BATCH, "input length": INPUTS, "target length": batch["labels"].shape[1], "dropout": dropout}
    about |= {"padding": round(1 - float(batch["attention_mask"].float().mean()), 2)}
    about |= {"parameters of ours and the peer": counts, "losses of ours and the peer": losses}
    return about | in_turn(stepper(ours.train(), batch), stepper(theirs.train(), batch), rounds)


def images(rounds: int, batch: int = 8) -> dict[str, Any]:
    """The forward pass of gMLP-S/16."""
    torch.manual_seed(0)
    ours = create_model("gmlp-s16-224").eval()
    theirs, pixels = PlainGmlp(ours), torch.randn(batch, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(ours(pixel_values=pixels).logits, theirs(pixels), rtol=1e-3, atol=1e-4)
        return {"batch": batch} | in_turn(lambda: ours(pixel_values=pixels), lambda: theirs(pixels), rounds)


def in_turn(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Medians of seconds on the wall and of the CPU, and the medians and quartiles of theirs / ours."""

    def timed(work: Callable[[], Any]) -> tuple[float, float]:
        start, cpu = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - start, time.process_time() - cpu

    for _ in range(2):
        ours(), theirs()
    times = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    result: dict[str, Any] = {"rounds": rounds}
    for kind, name in enumerate(("wall", "cpu")):
        our_seconds, their_seconds = [a[kind] for a, _ in times], [b[kind] for _, b in times]
        ratios = [b / a for a, b in zip(our_seconds, their_seconds, strict=True)]
        result[name] = {
            "ours_ms": round(1000 * statistics.median(our_seconds), 1),
            "peer_ms": round(1000 * statistics.median(their_seconds), 1),
            "times_as_fast": round(statistics.median(ratios), 3),
            "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="only rows whose name contains this; then nothing is written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {
        "command": "python benchmarks/train_cpu.py",
        "machine": platform.processor() or platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load_at_start": round(os.getloadavg()[0], 2),
        "rows": [],
        "loop": [],
    }
    rounds, hf, plain = options.rounds, "Hugging Face", "plain PyTorch"
    rows: list[tuple[str, str, float | None, Callable[[], dict[str, Any]]]] = [
        ("T5.1.1-small", hf, 1.15, lambda: training(t5_pair, 0.0, rounds)),
        ("T5.1.1-small, no padding", hf, None, lambda: training(t5_pair, 0.0, rounds, padding=False)),
        ("T5.1.1-small, dropout", hf, None, lambda: training(t5_pair, 0.1, rounds)),
        ("BERT, 8 layers of 512", hf, 1.0, lambda: training(bert_pair, 0.0, rounds)),
        ("BERT, 8 layers of 512, dropout", hf, None, lambda: training(bert_pair, 0.1, rounds)),
    ]
    for layer in ("random | geglu", "random + dot | geglu", "dot | remix"):
        rows.append((f"{layer}, small", plain, 1.3, partial(training, plain_pair(layer), 0.0, rounds)))
        rows.append(
            (f"{layer}, small, no padding", plain, None, partial(training, plain_pair(layer), 0.0, rounds, False))
        )
    rows.append(("gMLP-S/16, forward", f"timm's formulation in {plain}", 1.2, lambda: images(2 * rounds)))
    for what, peer, bar, measure in rows:
        if options.only in what:
            row = {"what": what, "peer": peer, "bar": bar} | measure()
            row["met"] = None if bar is None else row["wall"]["times_as_fast"] >= bar
            result["rows"].append(row)
            print(
                f"{what}: {row['wall']['times_as_fast']} × {peer} (CPU time {row['cpu']['times_as_fast']})", flush=True
            )
    for preset in ("t5-v1.1-tiny", "remixer-tiny"):
        if options.only in "loop":
            result["loop"].append(overhead(preset, 200))
            print("loop", json.dumps(result["loop"][-1]), flush=True)
    if not options.only:
        RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
