"""From a configuration to what a run is made of: task, tokenizer, model and examples that fit each other."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenmix.data.mixtures import MIXTURES, leave_out_missing
from tokenmix.data.objectives import Corrupted
from tokenmix.data.shards import TokenShards
from tokenmix.data.task import Example, Task, get_task
from tokenmix.data.tokenizers import KINDS, load_tokenizer, train_tokenizer
from tokenmix.models import TokenmixConfig, create_model, preset_config
from tokenmix.models.create import HEADS as MODEL_HEADS
from tokenmix.models.create import changed, plain
from tokenmix.training.batches import round_up
from tokenmix.training.checkpoint import open_weights
from tokenmix.training.config import RunConfig
from tokenmix.training.examples import MixtureExamples, TaskExamples, TextExamples, make_objective, text_examples
from tokenmix.training.features import HEADS, OBJECTIVES, choose_form, features_for, too_long

logger = logging.getLogger(__name__)
SMALL = {"d_model": 64, "d_ff": 128, "heads": 4, "layers": 2, "max_length": 128}  # sizes of a bare `--layer`
LONGEST = 1024  # tokens; a model without weights grows to its data up to here
SAMPLE = 1024  # examples at most, by which it is told how much is cut
WORDS = ("scan", "compositional")  # families whose tokens are words


@dataclass
class Parts:
    """What `build` gives."""

    model: Any
    tokenizer: Any
    examples: Any
    form: str
    tasks: dict[str, Task]  #: by name; empty for shards
    held_out: dict[str, Sequence[Example]] = field(default_factory=dict)  #: validation examples by task
    text_held_out: Any = None  #: validation windows of a text objective
    makers: dict[str, Any] = field(default_factory=dict)  #: feature makers by task
    objective: str | None = None


def build(config: RunConfig, folder: Path | None = None) -> Parts:
    """Everything a run needs. ``folder`` may hold the run's tokenizer already."""
    data = config.data
    tasks = _tasks(config)
    body = _body(config, tasks)
    form = "document" if not tasks else choose_form(next(iter(tasks.values())), body, data.form)
    objective = (data.objective or OBJECTIVES.get(body)) if form == "document" else None
    train, held_out = _examples(config, tasks, form)
    tasks = {name: tasks[name] for name in train}
    tokenizer = None if form == "image" else _tokenizer(config, folder, tasks, form, body, train)
    model_config = _model_config(config, tasks, form, tokenizer, train, held_out)
    model = _model(config, model_config, HEADS[model_config.body, form], tokenizer)

    makers = {
        name: features_for(form, model.config, tokenizer, task, data.max_input, data.max_target)
        for name, task in tasks.items()
        if form != "document"
    }
    for name, maker in makers.items():
        _say_what_is_cut(tasks[name].name, maker, train[name])
    parts = Parts(model, tokenizer, None, form, tasks, held_out, None, makers, objective)
    length = min(data.max_input or model.config.max_length, model.config.max_length)
    if form == "document":
        _text(parts, config, train, length)
    elif len(tasks) == 1:
        (name,) = tasks
        if form == "image" and data.augment:
            makers[name].unit = True
        parts.examples = TaskExamples(train[name], makers[name])
    else:
        components: dict[str, Any] = {name: TaskExamples(train[name], makers[name]) for name in tasks}
        if data.text:
            shards, made = TokenShards(data.text), make_objective("span_corruption", tokenizer, length, config.seed)
            components["text"] = Corrupted(shards.windows(made.window), made)
        maker = next(iter(makers.values()))
        rule: dict[str, Any] = {"rule": "capped", "cap": 1 << 19} if data.text else {}
        parts.examples = MixtureExamples(components, maker.collate, seed=config.seed, **rule)
    return parts


def _tasks(config: RunConfig) -> dict[str, Task]:
    name = config.data.task
    if name.startswith("shards:"):
        return {}
    if name not in MIXTURES:
        return {name: get_task(name)}
    return {part: get_task(part) for part in MIXTURES[name]}


def _body(config: RunConfig, tasks: dict[str, Task]) -> str:
    model = config.model
    if model.weights:
        body = TokenmixConfig.from_pretrained(_weights_folder(model.weights)).body
        for name, value in (("--model", model.name), ("--layer", model.layer)):
            if value:
                raise ValueError(f"{name} {value!r} beside --weights, which bring their own layers; leave one out")
        if model.body not in (None, body):
            raise ValueError(f"the weights in {model.weights} are of a {body} body, not {model.body}")
        return body
    if model.name:
        return preset_config(model.name).body
    if model.layer is None:
        raise ValueError("no model: give --model PRESET (`tokenmix models` lists them), or --layer EXPR")
    if model.body:
        return model.body
    forms = next(iter(tasks.values())).forms if tasks else ("document",)
    return next(body for body in ("seq2seq", "encoder", "vision", "decoder") if any((body, f) in HEADS for f in forms))


def _examples(config: RunConfig, tasks: dict[str, Task], form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Training and held-out examples by task; of a mixture, those of the tasks whose data is here."""
    data = config.data
    train: dict[str, Sequence[Example]] = {}
    for name, task in tasks.items():
        with leave_out_missing(data.task, name):
            examples = _labelled(task.load("train", data.folder, form, data.limit), form)
            train[name] = task.some(examples, "train", data.folder)
    if tasks and not train:
        raise ValueError(f"none of the tasks of mixture {data.task!r} has data: {', '.join(tasks)}; set --data")
    return train, {name: _held_out(config, tasks[name], form) for name in train}


def _labelled(examples: Sequence[Example], form: str) -> Sequence[Example]:
    """Without examples whose label or target is hidden."""
    if form not in ("classify", "text"):
        return examples
    return [e for e in examples if (e.label is not None if form == "classify" else e.target)]


def validation_split(config: RunConfig, task: Task) -> str:
    """The split asked for, else `validation`, else the task's default."""
    asked = config.validation.split
    return asked or ("validation" if "validation" in task.splits else task.default_split)


def _held_out(config: RunConfig, task: Task, form: str) -> Sequence[Example]:
    split = validation_split(config, task)
    if split == "train":
        hint = "; add &validation=FILE to the task" if task.family == "own" else ""
        logger.warning("task %s has no validation split: validating on what it is trained on%s", task.name, hint)
    folder = config.data.folder
    try:
        return task.some(task.load(split, folder, form, config.validation.examples), split, folder)
    except FileNotFoundError:
        if config.validation.split or task.family == "own":
            raise
        logger.warning("task %s has no split %r here: validating on the end of the training split", task.name, split)
        return task.load("train", folder, form)[-(config.validation.examples or 512) :]


def _texts(train: dict[str, Sequence[Example]], form: str) -> Iterator[str]:
    for examples in train.values():
        for e in examples:
            yield from {
                "text": (e.input, e.target),
                "classify": e.texts,
                "span": (e.question, e.context),
                "document": (e.target,),
            }[form]


def _tokenizer(config: RunConfig, folder: Path | None, tasks: dict[str, Task], form: str, body: str, train: Any) -> Any:
    data = config.data
    weights = _weights_folder(config.model.weights) if config.model.weights else None
    kind: Any = data.tokenizer
    if kind is None and weights is not None and (weights / "tokenizer.json").exists():
        kind = weights
    if folder is not None and (folder / "tokenizer.json").exists():
        kind = folder
    written = data.text if tasks else data.task.removeprefix("shards:")
    if written is not None:  # text that is token ids already
        shards = TokenShards(written)
        if kind in KINDS:
            raise ValueError(f"tokenizer {kind!r} is made from a task's text, and {written} has one; leave it out")
        if kind is None:
            return shards.tokenizer()
        tokenizer = load_tokenizer(kind)
        shards.check_tokenizer(tokenizer)
        return tokenizer
    if kind is not None and kind not in KINDS:
        return load_tokenizer(kind)
    if kind is None:
        kind = "word" if all(task.family in WORDS for task in tasks.values()) else "unigram"
    return train_tokenizer(
        _texts(train, form),
        kind=kind,
        vocab_size=data.vocab_size,
        style="bert" if body == "encoder" else "t5",
    )


def _weights_folder(weights: str) -> Path:
    folder = Path(weights)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"no model in {folder}: expected config.json and model.safetensors there")
    return folder


def _model_config(
    config: RunConfig, tasks: dict[str, Task], form: str, tokenizer: Any, train: Any, held_out: Any
) -> TokenmixConfig:
    """The model's configuration, sized to the tokenizer, the labels and, without weights, the longest example."""
    model, data = config.model, config.data
    task = next(iter(tasks.values())) if tasks else None
    fitted: dict[str, Any] = {}
    if form in ("classify", "image") and task is not None:
        fitted["id2label"] = dict(enumerate(task.labels or ("LABEL_0",)))  # without labels: a number, to be met
        fitted["label2id"] = {label: index for index, label in fitted["id2label"].items()}
    if model.weights:
        base = TokenmixConfig.from_pretrained(_weights_folder(model.weights))
        return changed(base, {**fitted, **model.options})
    if model.name:
        overrides = {"layer": model.layer} if model.layer else {}
        base = preset_config(model.name, **overrides, **model.options)
    else:
        sizes: dict[str, Any] = dict(SMALL)
        body = _body(config, tasks)
        if body == "vision":
            sizes.pop("max_length")
            sizes |= {"image_size": 28, "patch_size": 7, "channels": 1}
        base = TokenmixConfig(**{"body": body, "layer": str(model.layer), **sizes, **model.options})
    if tokenizer is not None:
        size = len(tokenizer)
        fitted["vocab_size"] = size if size < 1024 else round_up(size, 64)  # matrix units like multiples
        fitted["pad_token_id"] = fitted["decoder_start_token_id"] = tokenizer.pad_token_id
        fitted["eos_token_id"] = tokenizer.eos_token_id
        if form == "document":
            fitted["max_length"] = data.max_input or base.max_length
        elif "max_length" not in model.options:
            longest = _longest(config, tasks, form, base, tokenizer, train, held_out)
            fitted["max_length"] = max(base.max_length, round_up(longest))
    return TokenmixConfig(**{**plain(base), **fitted, **model.options})


def _longest(
    config: RunConfig, tasks: Any, form: str, base: TokenmixConfig, tokenizer: Any, train: Any, held_out: Any
) -> int:
    """Tokens of the longest input or target in training and held-out examples, cut as the data is."""
    longest = 0
    for name, task in tasks.items():
        extra: Sequence[Example] = []
        if task.default_split not in (validation_split(config, task), "train"):
            try:  # what the task is judged on has to fit too: COGS's generalisation targets are the longest
                extra = task.load(task.default_split, config.data.folder, form)
            except OSError:
                extra = []
        cap = config.data.max_input or LONGEST
        roomy = TokenmixConfig(**{**plain(base), "max_length": max(cap, config.data.max_target or LONGEST)})
        maker = features_for(form, roomy, tokenizer, task, cap, config.data.max_target or LONGEST)
        for examples in (train[name], held_out[name], extra):
            for start in range(0, len(examples), 4096):
                made = maker.encode(examples[start : start + 4096])
                longest = max(longest, int(np.max([maker.sizes(f) for f in made])))
    return longest


def _say_what_is_cut(name: str, maker: Any, examples: Sequence[Example]) -> None:
    """One warning where training examples are longer than the model takes, by a sample of them."""
    sample = [examples[i] for i in range(0, len(examples), -(-len(examples) // SAMPLE))]
    for what, share, most in too_long(maker, sample):
        if share:
            logger.warning(
                "task %s: about %.3g%% of the %s are longer than max_length=%d and are cut",
                name,
                100 * share,
                what,
                most,
            )


def _model(config: RunConfig, model_config: TokenmixConfig, head: str, tokenizer: Any) -> Any:
    torch.manual_seed(config.seed)
    if config.model.weights:
        model = open_weights(MODEL_HEADS[head], _weights_folder(config.model.weights), config=model_config)
        if tokenizer is not None and len(tokenizer) > model_config.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} tokens, the model of {config.model.weights} "
                f"{model_config.vocab_size}; take the tokenizer that the model was trained with"
            )
    else:
        model = create_model(model_config, head=head)
    if config.model.freeze_embeddings:
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if module is not None:
                module.requires_grad_(False)
    if config.device.gradient_checkpointing:
        for stack in (m for m in model.modules() if hasattr(m, "gradient_checkpointing")):
            stack.gradient_checkpointing = True
    return model


def _text(parts: Parts, config: RunConfig, train: dict[str, Sequence[Example]], length: int) -> None:
    objective = parts.objective or "span_corruption"
    if parts.tasks:
        (name,) = parts.tasks
        parts.examples = text_examples(train[name], parts.tokenizer, objective, length, config.seed)
        parts.text_held_out = text_examples(parts.held_out[name], parts.tokenizer, objective, length, config.seed)
        return
    made = make_objective(objective, parts.tokenizer, length, config.seed)
    windows = TokenShards(config.data.task.removeprefix("shards:")).windows(made.window)
    held = min(max(1, len(windows) // 100), config.validation.examples or 512)  # the last windows are not trained on
    parts.examples = TextExamples(Part(windows, 0, len(windows) - held), made)
    parts.text_held_out = TextExamples(Part(windows, len(windows) - held, len(windows)), made)


class Part:
    """Some consecutive windows of a text."""

    def __init__(self, windows: Any, start: int, stop: int) -> None:
        self.windows, self.start, self.stop, self.length = windows, start, stop, windows.length

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def batch(self, indices: Any) -> Any:
        return self.windows.batch(np.asarray(indices) + self.start)

    def document_ids(self, indices: Any) -> Any:
        return self.windows.document_ids(np.asarray(indices) + self.start)
