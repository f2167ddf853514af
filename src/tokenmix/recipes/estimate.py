"""How long a recipe takes on one H200, before it is run: launches bound small models, arithmetic the large ones.

An estimate, for planning: 250 steps a second at most, evaluation included (a small model that is compiled and recorded
makes 392 on COGS, `benchmarks/results/train-loop-h200.json`), and a third of the machine's bf16 peak for the arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tokenmix.models import TokenmixConfig
from tokenmix.models.counting import forward_flops
from tokenmix.recipes.recipe import Recipe, Stage, get_recipe
from tokenmix.recipes.run import config_of, contenders_of, stages_of
from tokenmix.training import RunConfig

STEPS_PER_SECOND = 250.0
FLOPS_PER_SECOND = 330e12
START = 1.5  # minutes of a run that are not steps: compiling, judging
EPOCH_EXAMPLES = {"imagenet": 1_281_167, "sst2": 67_349, "mnli": 392_702}
# Typical lengths of input and target in a padded batch, in tokens, where the data and not a setting decides them.
LENGTHS = {
    "cogs": (16, 56),
    "multi30k": (32, 32),
    "snli": (48, 8),
    "conjnli": (64, 8),
    "anli": (64, 8),
    "glue": (64, 8),
    "superglue": (192, 8),
    "samsum": (192, 48),
    "ag_news": (64, 8),
    "sst2": (32, 8),
    "squad": (128, 8),
}

_COUNTED: dict[tuple[str, int, int | None], int] = {}


def gpu_minutes(recipe: Recipe, scale: str, only: Sequence[str] = (), parts: Sequence[str] = ()) -> float:
    """Minutes of one GPU for all runs, one after another; of the rows ``only`` and the baseline, of the stages ``parts``.

    >>> 10 < gpu_minutes(get_recipe("gmlp-table-3"), "bench") < 200
    True
    """
    return _gpu_minutes(recipe.name, scale, tuple(only), tuple(parts))


@functools.cache
def _gpu_minutes(name: str, scale: str, only: tuple[str, ...], parts: tuple[str, ...]) -> float:
    recipe = get_recipe(name)
    chosen = recipe.scale(scale)
    total = 0.0
    for stage in stages_of(recipe, scale, parts):
        for entry in contenders_of(recipe, scale, stage, only):
            config = config_of(entry, stage.body or chosen.body)
            if stage.profile:
                total += 0.5 if stage.settings["steps"] else 0.0  # counting needs no GPU
                continue
            total += chosen.seeds * (START + _minutes(stage, config))
    return total


def steps_of(run: RunConfig) -> int:
    """Steps of a run, of epochs too."""
    if run.budget.steps is not None:
        return run.budget.steps
    if run.budget.epochs is not None:
        return round(run.budget.epochs * EPOCH_EXAMPLES.get(run.data.task, 100_000) / run.data.batch_size)
    return 3000


def shape_of(run: RunConfig, config: Any) -> tuple[int, int | None]:
    """Lengths of input and target in a batch of a run."""
    task = run.data.task
    length = min(run.data.max_input or config.max_length, config.max_length)
    target = min(run.data.max_target or length, config.max_length)
    if task.startswith(("text:", "shards:", "c4")):
        target = max(1, round(0.23 * length))  # span corruption: 114 of 512
    for name, (inputs, targets) in LENGTHS.items():
        if task.startswith(name):
            length, target = min(length, inputs), min(target, targets)
            break
    return length, target if config.body == "seq2seq" else None


def _minutes(stage: Stage, config: Any) -> float:
    run = RunConfig.of(stage.settings)
    length, target = shape_of(run, config)
    flops = 3 * run.data.batch_size * _flops(config, length, target)
    return steps_of(run) * max(1 / STEPS_PER_SECOND, flops / FLOPS_PER_SECOND) / 60


def _flops(config: TokenmixConfig, length: int, target: int | None) -> int:
    """FLOPs of a forward pass, counted once for the recipes that share a model."""
    key = (config.to_json_string(use_diff=False), length, target)
    if key not in _COUNTED:
        _COUNTED[key] = forward_flops(config, length, target).total
    return _COUNTED[key]
