"""Models on a CPU: ours against Hugging Face's and against plain PyTorch on the same cores, and what the loop costs.

    python benchmarks/train_cpu.py          # 30 minutes on two idle cores; writes benchmarks/results/train-cpu.json

The two sides are two processes, each as its users run it, that take steps in turn: whatever else the machine does hits
both alike, and neither inherits the other's memory. Reported is the median of the per-round ratios, of wall time and of
CPU time. A training step is forward, backward, clipping and AdamW, at fp32, on the same ids; both sides give the same
loss before anything is timed. Ours keeps freed memory, as every `tokenmix` command does (tokenmix.memory); what the
ratio is when the peer is made to do so too stands beside it. Bars:

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
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.plain import PlainGmlp, PlainSeq2Seq
from tokenmix.memory import keep_freed_memory
from tokenmix.models import create_model
from tokenmix.models.convert import from_transformers
from tokenmix.training.optimizers import clip

RESULTS = Path(__file__).parent / "results" / "train-cpu.json"
BATCH, INPUTS, TARGETS = 8, 128, 32
WARM_UP = 6  # steps until the heap has its size


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


def trainer(model: Any, batch: dict[str, torch.Tensor], ours: bool) -> Callable[[], None]:
    """A function that takes one training step."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)
    options = {"return_logits": False} if ours else {}  # as our loop trains

    def step() -> None:
        model(**batch, **options).loss.backward()
        clip(optimizer, 1.0) if ours else torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def training(make: Callable[[float, bool], Pair], dropout: float, padding: bool, side: int) -> tuple[Any, Any, Any]:
    """One side of a pair: a training step, the loss that must agree, and what is to be said about it."""
    model, batch = (pair := make(dropout, padding))[side], pair[2]
    with torch.no_grad():
        loss = float(model.eval()(**batch).loss)
    about = {"batch": BATCH, "input length": INPUTS, "target length": batch["labels"].shape[1], "dropout": dropout}
    about |= {"padding": round(1 - float(batch["attention_mask"].float().mean()), 2)}
    about |= {"parameters": sum(p.numel() for p in model.parameters())}
    return trainer(model, batch, ours=not side), loss, about


def images(side: int, batch: int = 8) -> tuple[Any, Any, Any]:
    """One side's forward pass of gMLP-S/16."""
    ours, pixels = create_model("gmlp-s16-224").eval(), torch.randn(batch, 3, 224, 224)
    theirs = PlainGmlp(ours)

    @torch.inference_mode()
    def forward() -> torch.Tensor:
        return theirs(pixels) if side else ours(pixel_values=pixels).logits

    return forward, float(forward().norm()), {"batch": batch, "parameters": sum(p.numel() for p in ours.parameters())}


Row = tuple[str, float | None, Callable[[int], tuple[Any, Any, Any]]]
HF, PLAIN = "Hugging Face", "plain PyTorch"


def rows() -> dict[str, Row]:
    """What is measured: the peer, the bar, and the work of one side."""

    def steps(make: Callable[[float, bool], Pair], dropout: float = 0.0, padding: bool = True) -> Any:
        return partial(training, make, dropout, padding)

    found: dict[str, Row] = {
        "T5.1.1-small": (HF, 1.15, steps(t5_pair)),
        "T5.1.1-small, no padding": (HF, None, steps(t5_pair, padding=False)),
        "T5.1.1-small, dropout": (HF, None, steps(t5_pair, dropout=0.1)),
        "BERT, 8 layers of 512": (HF, 1.0, steps(bert_pair)),
        "BERT, 8 layers of 512, dropout": (HF, None, steps(bert_pair, dropout=0.1)),
    }
    for layer in ("random | geglu", "random + dot | geglu", "dot | remix"):
        found[f"{layer}, small"] = (PLAIN, 1.3, steps(plain_pair(layer)))
        found[f"{layer}, small, no padding"] = (PLAIN, None, steps(plain_pair(layer), padding=False))
    found["gMLP-S/16, forward"] = (f"timm's formulation in {PLAIN}", 1.2, images)
    return found


def serve(what: str, side: int, threads: int, pipe: Connection) -> None:
    """The process of one side: says what it is, then answers every request with the time of one step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    work, value, about = rows()[what][2](side)
    pipe.send((value, about))
    while (request := pipe.recv()) != "end":
        if request == "keep":
            keep_freed_memory()
            continue
        start, cpu = time.perf_counter(), time.process_time()
        work()
        pipe.send((time.perf_counter() - start, time.process_time() - cpu))


def row(what: str, rounds: int, threads: int) -> dict[str, Any]:
    """One row of the table: both sides' steps in turn, medians of seconds, medians and quartiles of theirs / ours."""
    peer, bar, _ = rows()[what]
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for side in (0, 1):
        here, there = spawn.Pipe()
        processes.append(spawn.Process(target=serve, args=(what, side, threads, there), daemon=True))
        processes[-1].start()
        pipes.append(here)
        there.close()
    (ours, about), (theirs, their_about) = (pipe.recv() for pipe in pipes)
    assert abs(ours - theirs) < 1e-3 * max(1, abs(ours)), (ours, theirs)
    assert about == their_about, (about, their_about)
    result: dict[str, Any] = {"what": what, "peer": peer, "bar": bar, **about, "rounds": rounds}

    def timed(pipe: Connection) -> tuple[float, float]:
        time.sleep(0.1)  # the other's threads have come to rest
        pipe.send("step")
        return pipe.recv()

    pipes[0].send("keep")
    times = [[timed(pipe) for pipe in pipes] for _ in range(WARM_UP + rounds)][WARM_UP:]
    pipes[1].send("keep")
    both_keep = [[timed(pipe) for pipe in pipes] for _ in range(WARM_UP + rounds // 2)][WARM_UP:]
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("end")
        process.join()
    for kind, name in enumerate(("wall", "cpu")):
        ratios = [theirs[kind] / ours[kind] for ours, theirs in times]
        result[name] = {
            "ours_ms": round(1000 * statistics.median(ours[kind] for ours, _ in times), 1),
            "peer_ms": round(1000 * statistics.median(theirs[kind] for _, theirs in times), 1),
            "times_as_fast": round(statistics.median(ratios), 3),
            "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
        }
    result["times_as_fast_where_the_peer_keeps_memory_too"] = round(
        statistics.median(theirs[0] / ours[0] for ours, theirs in both_keep), 3
    )
    return result | {"met": None if bar is None else result["wall"]["times_as_fast"] >= bar}


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
    for what in rows():
        if options.only in what:
            result["rows"].append(found := row(what, options.rounds, options.threads))
            ratio, both = found["wall"]["times_as_fast"], found["times_as_fast_where_the_peer_keeps_memory_too"]
            print(f"{what}: {ratio} × {found['peer']}, {both} × where that keeps memory too", flush=True)
    torch.set_num_threads(options.threads)
    for preset in ("t5-v1.1-tiny", "remixer-tiny"):
        if options.only in "loop":
            result["loop"].append(overhead(preset, 200))
            print("loop", json.dumps(result["loop"][-1]), flush=True)
    if not options.only:
        RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
