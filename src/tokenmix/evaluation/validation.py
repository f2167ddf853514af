"""Validation during training: loss and the task's own metric on held-out examples."""

from __future__ import annotations

from typing import Any

from tokenmix.evaluation.metrics import perplexity
from tokenmix.evaluation.predictions import mean_loss, predict
from tokenmix.training.build import Parts
from tokenmix.training.config import RunConfig
from tokenmix.training.examples import TaskExamples


def validate(config: RunConfig, parts: Parts, precision: str = "fp32") -> dict[str, float]:
    """Metrics by name, the headline first, and `loss`. Of a mixture: the mean of the headlines, and each task's own."""
    model = parts.model
    causal = model.config.body == "decoder"
    options: dict[str, Any] = {"precision": precision}
    if parts.form == "document":
        loss, items = mean_loss(model, parts.text_held_out, causal=causal, batch_size=32, **options)
        return {**perplexity(loss * items, items), "loss": loss}
    out: dict[str, float] = {}
    losses = []
    for name, task in parts.tasks.items():
        examples, maker = parts.held_out[name], parts.makers[name]
        loss, _ = mean_loss(model, _encoded(parts, name), causal=causal, **options)
        losses.append(loss)
        if config.validation.metric:
            decoding: dict[str, Any] = {"num_beams": config.validation.beams} if parts.form == "text" else {}
            scores = task.evaluate(predict(model, maker, parts.form, examples, task, **options, **decoding), examples)
            prefix = "" if len(parts.tasks) == 1 else f"{name}/"
            out |= {f"{prefix}{key}": value for key, value in scores.items()}
    if len(parts.tasks) > 1 and out:
        heads = [out[f"{name}/{task.metric}"] for name, task in parts.tasks.items()]
        out = {"mean": sum(heads) / len(heads), **out}
    return {**out, "loss": sum(losses) / len(losses)}


def _encoded(parts: Parts, name: str) -> TaskExamples:
    """The held-out examples as features, made once."""
    cache = parts.__dict__.setdefault("encoded", {})
    if name not in cache:
        cache[name] = TaskExamples(parts.held_out[name], parts.makers[name])
    return cache[name]
