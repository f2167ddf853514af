"""How long a recipe takes on one H200, before it is run.

An estimate, for planning: a step of a small model waits for the kernels of its layers, however little each does, and
then for its arithmetic. The two figures below give the 3.7 ms that a step of the COGS model takes when it is compiled and
recorded within a quarter, and are too low by two fifths for a Remixer's 4.9 ms (`benchmarks/results/cogs-step-h200.json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenmix.models import TokenmixConfig
from tokenmix.models.counting import Parts, forward_flops
from tokenmix.recipes.recipe import Recipe, Scale, Stage
from tokenmix.recipes.run import config_of, contenders_of, stages_of
from tokenmix.recipes.verdicts import Values, is_counted
from tokenmix.training import RunConfig
from tokenmix.training.config import merge

KERNELS = 0.4e-3  # seconds of a step, for each layer, without its arithmetic
FLOPS_PER_SECOND = 250e12
START = 0.75  # minutes of a model that are not steps: starting, compiling (once for all seeds), judging
EPOCH_EXAMPLES = {"imagenet": 1_281_167, "sst2": 67_349, "mnli": 392_702}
# Typical lengths of input and target in a padded batch, in tokens, where the data and not a setting decides them.
LENGTHS = {
    "cogs": (24, 160),
    "multi30k": (56, 56),
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

REAL = {"cogs": (10, 56), "multi30k": (20, 20)}  # the same without padding

VOCABULARY = {"cogs": 834, "scan": 40}  # of tasks with few words

_COUNTED: dict[tuple[str, int, int | None], Parts] = {}


def gpu_minutes(
    recipe: Recipe,
    scale: str,
    only: Sequence[str] = (),
    parts: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    known: Values | None = None,
) -> float:
    """Minutes of one GPU for all runs, one after another; of the rows ``only`` and the baseline, of the stages ``parts``.

    With numbers that are ``known`` (row → column → one per seed), of the runs that are missing.

    >>> 10 < gpu_minutes(get_recipe("gmlp-table-3"), "bench") < 200
    True
    """
    chosen = recipe.scale(scale)
    total = 0.0
    for stage in stages_of(recipe, scale, parts):
        for entry in contenders_of(recipe, scale, stage, only, settings):
            left = _seeds_left(chosen, stage, (known or {}).get(entry.name, {}))
            if left == 0:
                continue
            if stage.profile:
                total += 0.5 if stage.settings["steps"] else 0.0  # counting needs no GPU
                continue
            config = config_of(entry, stage.body or chosen.body)
            total += START + left * _minutes(merge(stage.settings, settings or {}), config)
            search = chosen.search
            if search is not None and search.stage == stage.name and recipe.row(entry.name).searched:
                asked = merge(stage.settings, settings or {}, search.settings)
                total += search.trials * (START + _minutes(asked, config))
    return total


def _seeds_left(scale: Scale, stage: Stage, known: Mapping[str, Sequence[float | None]]) -> int:
    """How many seeds of a row a stage has yet to run, those included that a later stage goes on from."""
    seeds = 1 if stage.profile else scale.seeds
    measured = [column for column in stage.columns if not is_counted(column)]
    done = [sum(value is not None for value in known.get(column, ())) for column in measured]
    mine = max(0, seeds - max(done)) if done else 0  # a run fills all of its columns that its model has
    return max([mine, *(_seeds_left(scale, other, known) for other in scale.stages if other.after == stage.name)])


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
    for name, (inputs, targets) in ({**LENGTHS, **REAL} if run.device.skip_padding else LENGTHS).items():
        if task.startswith(name):
            length, target = min(length, inputs), min(target, targets)
            break
    return length, target if config.body == "seq2seq" else None


def _minutes(settings: Mapping[str, Any], config: Any) -> float:
    run = RunConfig.of(settings)
    length, target = shape_of(run, config)
    parts = _flops(config, length, target)
    words = min(run.data.vocab_size, VOCABULARY.get(run.data.task, run.data.vocab_size)) / config.vocab_size
    asked = 0.15 if run.data.objective == "masked_lm" else 1.0  # a head sees what is to be predicted
    flops = 3 * run.data.batch_size * (parts.total - parts.head * max(0.0, 1 - words * asked))
    layers = config.layers + (config.decoder_layers or 0)
    return steps_of(run) * (KERNELS * layers + flops / FLOPS_PER_SECOND) / 60


def _flops(config: TokenmixConfig, length: int, target: int | None) -> Parts:
    """FLOPs of a forward pass, counted once for the recipes that share a model."""
    key = (config.to_json_string(use_diff=False), length, target)
    if key not in _COUNTED:
        _COUNTED[key] = forward_flops(config, length, target)
    return _COUNTED[key]
