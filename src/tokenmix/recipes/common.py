"""What the recipes share: the settings of the small scales. The papers' own settings are training presets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenmix.recipes.recipe import Stage
from tokenmix.training.config import merge

# --- tiny: the machinery alone, in a few seconds, with nothing to download

TINY_SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1}
TINY_VISION: dict[str, Any] = {**TINY_SIZES, "image_size": 28, "patch_size": 7, "channels": 1}
TINY_NOTE = "generated data and a few steps: this tries the machinery and says nothing about the models"


def tiny(
    name: str, task: str, columns: dict[str, str], *, after: str | None = None, body: str | None = None, **data: Any
) -> Stage:
    """A stage of a few steps on generated data."""
    words = {} if after or task == "toy_images" else {"tokenizer": "word"}  # the weights bring their tokenizer
    settings = {
        "data": {"task": task, "limit": 32, "batch_size": 4, "vocab_size": 400, **words, **data},
        "budget": {"steps": 2},
        "validation": {"every": 0, "examples": 4, "metric": task == "toy"},
        "checkpoints": {"every": 0},
        "device": {"device": "cpu", "threads": 1},
    }
    return Stage(name, settings, columns, after=after, examples=4, body=body)


def tiny_text(name: str, columns: dict[str, str], length: int = 32, body: str | None = None) -> Stage:
    """Pretraining for a few steps on generated text."""
    return tiny(name, "toy", columns, max_input=length, limit=16, body=body, tokenizer="bpe")


def profiled(
    columns: dict[str, str],
    batch: int = 1,
    length: int = 16,
    steps: int = 1,
    target: int | None = None,
    original: bool = False,
) -> Stage:
    """Count and time instead of training; with ``original`` the paper's own models."""
    settings = {"batch": batch, "length": length, "target_length": target, "steps": steps, "rounds": 3}
    return Stage("profile", settings, columns, profile=True, original=original)


# --- bench: one GPU, minutes. `text:NAME` is tokenized once into shards with a vocabulary of `vocab_size`.

# The Transformer of Tensor2Tensor, on which the Synthesizer paper builds its translation and language models.
T2T: dict[str, Any] = {
    "positions": "sinusoidal", "norm": "layer", "bias": True, "scale": True, "init": "xavier", "tie_embeddings": True,
    "scale_output": False,
}  # fmt: skip
LOG = 100  # steps: a small model makes hundreds a second
ADAM = {"name": "adamw", "weight_decay": 0.01, "clip": 1.0}


def bench_text(
    name: str,
    columns: dict[str, str],
    steps: int,
    *,
    length: int,
    batch: int,
    lr: float,
    objective: str,
    vocab: int = 8_000,
    body: str | None = None,
    feed_forward: str | None = None,
) -> Stage:
    """Pretraining on Wikipedia from prepared shards."""
    settings = {
        "data": {
            "task": "text:wikipedia",
            "objective": objective,
            "batch_size": batch,
            "max_input": length,
            "vocab_size": vocab,
        },
        "budget": {"steps": steps},
        "optimizer": {**ADAM, "lr": lr},
        "schedule": {"name": "linear", "warmup": 0.1},
        "validation": {"every": max(1, steps // 2), "examples": 2048},
        "checkpoints": {"every": max(1, steps // 2), "keep_last": 1},
        "log_every": LOG,
    }
    return Stage(name, settings, columns, body=body, feed_forward=feed_forward)


def bench_finetune(
    name: str,
    task: str,
    columns: dict[str, str],
    steps: int,
    *,
    after: str | None,
    lr: float,
    batch: int = 32,
    **more: Any,
) -> Stage:
    """Finetuning from the weights of a stage before."""
    settings: dict[str, Any] = {
        "data": {"task": task, "batch_size": batch, **more},
        "budget": {"steps": steps},
        "optimizer": {**ADAM, "lr": lr},
        "schedule": {"name": "linear", "warmup": 0.1},
        "model": {"options": {"dropout": 0.1}},
        "validation": {"every": max(1, steps // 3)},
        "checkpoints": {"every": steps, "keep_last": 1},
        "log_every": LOG,
    }
    return Stage(name, settings, columns, after=after)


def bench_scratch(
    name: str,
    task: str,
    columns: dict[str, str],
    steps: int,
    *,
    lr: float,
    batch: int,
    beams: int = 1,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Stage:
    """A seq2seq task from scratch: one shape, of which real tokens alone are computed; validated once, at the end."""
    stage = bench_finetune(name, task, columns, steps, after=None, lr=lr, batch=batch, buckets=1, **more)
    above = {"validation": {"every": 0}, "device": {"skip_padding": True}, "model": {"options": options or {}}}
    return replace(stage, settings=merge(stage.settings, above), beams=beams)


WIKIPEDIA = "Wikipedia, a 30-million-word slice of 2014, in place of the paper's text"
SCRATCH = "small models; numbers are not the paper's benchmark"
