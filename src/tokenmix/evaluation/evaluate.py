"""Evaluate checkpoints on tasks.

>>> for result in evaluate(["runs/a"], ["scan", "scan_length"]):
...     print(result.task, result.metrics)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmix.data.mixtures import MIXTURES, leave_out_missing
from tokenmix.data.task import Example, Task, get_task
from tokenmix.data.tokenizers import load_tokenizer
from tokenmix.devices import chosen_device
from tokenmix.evaluation import metrics
from tokenmix.evaluation.predictions import document_losses, mean_loss, predict
from tokenmix.models import TokenmixConfig
from tokenmix.models.create import HEADS as MODEL_HEADS
from tokenmix.naming import unknown
from tokenmix.training.checkpoint import open_weights
from tokenmix.training.examples import TaskExamples, text_examples
from tokenmix.training.features import HEADS, OBJECTIVES, choose_form, features_for

PRECISIONS = ("auto", "fp32", "bf16")


@dataclass
class Checkpoint:
    """A model that was trained, with its tokenizer and the form of task that its head is for."""

    path: Path
    model: Any
    tokenizer: Any
    forms: tuple[str, ...]  #: that the head can do
    precision: str = "fp32"

    def maker(self, form: str, task: Task) -> Any:
        """Its features for a form."""
        return features_for(form, self.model.config, self.tokenizer, task)


@dataclass
class Evaluation:
    """A checkpoint's metrics on a task."""

    checkpoint: str
    task: str
    split: str
    metrics: dict[str, float]  #: the headline first
    examples: int
    seconds: float
    note: str = ""  #: what a table must say about these numbers
    predictions: list[Any] = field(default_factory=list, repr=False)
    asked: Sequence[Example] = field(default_factory=list, repr=False)  #: what the predictions are for

    def to_dict(self) -> dict[str, Any]:
        """Without the predictions and what they are for."""
        return {k: v for k, v in self.__dict__.items() if k not in ("predictions", "asked")}


def open_checkpoint(path: str | Path, device: str = "auto", precision: str = "auto") -> Checkpoint:
    """A run folder, one of its checkpoints (`runs/a/checkpoints/00000500`), or what `save_pretrained` wrote."""
    folder = Path(path)
    if not (folder / "config.json").exists() or not any(folder.glob("*.safetensors")):
        begun = (
            " (its run is not finished: take one of its checkpoints/ folders)"
            if (folder / "checkpoints").is_dir()
            else ""
        )
        raise FileNotFoundError(f"no model in {folder}{begun}: expected config.json and model.safetensors there")
    config = TokenmixConfig.from_pretrained(folder)
    name = (config.architectures or [""])[0]
    head = next((h for h, kind in MODEL_HEADS.items() if kind.__name__ == name), None)
    if head in (None, "none"):
        raise ValueError(
            f"{folder} holds a model without a head ({name or 'unknown'}); train one with `tokenmix train --weights`"
        )
    where = chosen_device(device)
    model = open_weights(MODEL_HEADS[head], folder).to(where).eval()
    tokenizer = None
    if config.body != "vision":
        home = next((f for f in (folder, folder.parent.parent) if (f / "tokenizer.json").exists()), folder)
        tokenizer = load_tokenizer(home)
    forms = tuple(form for (body, form), h in HEADS.items() if h == head and body == config.body)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    precision = ("bf16" if where.type == "cuda" else "fp32") if precision == "auto" else precision
    return Checkpoint(folder, model, tokenizer, forms, precision)


def evaluate_task(
    checkpoint: Checkpoint,
    task: Task | str,
    split: str | None = None,
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 128,
    on_batch: Callable[[int], None] = lambda done: None,
    on_examples: Callable[[int], None] = lambda count: None,
    **decoding: Any,
) -> Evaluation:
    """One checkpoint on one task. ``decoding``: num_beams, length_penalty, … where the task generates."""
    if batch_size < 1 or (limit is not None and limit < 1):
        raise ValueError(f"batch_size and limit are at least 1; got {batch_size} and {limit}")
    task = get_task(task) if isinstance(task, str) else task
    form = choose_form(task, checkpoint.model.config.body)
    if form not in checkpoint.forms:
        form = next((f for f in task.forms if f in checkpoint.forms), form)
        if form not in checkpoint.forms:
            raise ValueError(
                f"{checkpoint.path} was trained for {' or '.join(checkpoint.forms)}, and task {task.name!r} has the "
                f"forms {', '.join(task.forms)}; finetune it: `tokenmix train --weights {checkpoint.path} "
                f"--task {task.name}`"
            )
    split = split or task.default_split
    examples = task.some(task.load(split, data, form, limit), split, data)
    on_examples(len(examples))
    started = time.perf_counter()
    options: dict[str, Any] = {"batch_size": batch_size, "precision": checkpoint.precision}
    if form == "document":
        scores, predictions = _documents(checkpoint, task, examples, on_batch, options)
    else:
        maker = checkpoint.maker(form, task)
        decoding = decoding if form == "text" else {}
        predictions = predict(checkpoint.model, maker, form, examples, task, on_batch=on_batch, **options, **decoding)
        scores = task.evaluate(predictions, examples)
        if form != "text" or all(example.target for example in examples):
            causal = checkpoint.model.config.body == "decoder"
            scores["loss"] = mean_loss(checkpoint.model, TaskExamples(examples, maker), causal=causal, **options)[0]
    seconds = time.perf_counter() - started
    note = task.about(split, data)
    if split == "train":
        note = f"{note}; the training data" if note else "the training data"
    return Evaluation(
        str(checkpoint.path), task.name, split, scores, len(examples), seconds, note, predictions, examples
    )


def _documents(
    checkpoint: Checkpoint, task: Task, examples: Sequence[Example], on_batch: Any, options: dict[str, Any]
) -> tuple[dict[str, float], list[Any]]:
    """Perplexity: of whole documents for a causal LM, of the objective's targets for the others."""
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    if model.config.body == "decoder":
        losses = document_losses(model, tokenizer, examples, precision=checkpoint.precision, on_batch=on_batch)
        return task.evaluate(losses, examples), losses
    windows = text_examples(examples, tokenizer, OBJECTIVES[model.config.body], model.config.max_length)
    loss, items = mean_loss(model, windows, **{**options, "batch_size": 32})
    on_batch(len(examples))
    return {**metrics.perplexity(loss * items, items), "loss": loss}, []


def evaluate(
    checkpoints: Sequence[str | Path],
    tasks: Sequence[str],
    split: str | None = None,
    *,
    device: str = "auto",
    precision: str = "auto",
    **options: Any,
) -> Iterator[Evaluation]:
    """Every checkpoint on every task (a mixture stands for those of its tasks whose data is here), one result at a time."""
    for what, given in (("checkpoints", checkpoints), ("tasks", tasks)):
        if isinstance(given, (str, Path)):
            raise ValueError(f"{what} are a list; got {str(given)!r} alone")
    for path in checkpoints:
        checkpoint = open_checkpoint(path, device, precision)
        for task in tasks:
            for name in MIXTURES.get(task) or [task]:
                with leave_out_missing(task, name):
                    yield evaluate_task(checkpoint, name, split, **options)
