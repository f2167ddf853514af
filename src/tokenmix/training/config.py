"""One configuration for a run: dataclasses, from a file and the command line, written whole into the run folder.

>>> config = RunConfig.of({"model": {"name": "remixer-tiny"}, "data": {"task": "scan"}, "budget": {"steps": 100}})
>>> config.optimizer.name, config.budget.steps
('adamw', 100)
>>> RunConfig.of({"optimizer": {"learning_rate": 1e-3}})
Traceback (most recent call last):
ValueError: unknown key in optimizer 'learning_rate'. Known: betas, clip, eps, lr, name, weight_decay
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from tokenmix.naming import unknown


@dataclass
class ModelConfig:
    """Which model. Either a preset's `name`, or a `layer` expression with a `body` and sizes in `options`."""

    name: str | None = None  #: a preset (`tokenmix models`)
    layer: str | None = None  #: an expression in place of a preset, or in place of the preset's own
    body: str | None = None  #: with `layer` alone: seq2seq, encoder, decoder or vision; by default what the task needs
    weights: str | None = None  #: start from these weights: a run, a checkpoint or a Hugging Face folder
    options: dict[str, Any] = field(default_factory=dict)  #: of TokenmixConfig: d_model, layers, dropout, …
    freeze_embeddings: bool = False  #: embeddings and output matrix stay as they are (Synthesizer's co-training)


@dataclass
class DataConfig:
    """Which examples, and how they become batches."""

    task: str = "scan"  #: a task, a mixture (glue, superglue, en_mix), file:…, images:…, or shards:FOLDER
    form: str | None = None  #: text, classify, span, document or image; by default the first that the body can do
    objective: Literal["span_corruption", "masked_lm", "causal_lm", "joined_causal_lm"] | None = (
        None  #: for text without labels; by default the body's
    )
    text: str | None = None  #: with a mixture: a folder of shards whose span corruption is one more task (co-training)
    folder: str | None = None  #: of local data; by default $TOKENMIX_DATA
    tokenizer: str | None = (
        None  #: a folder, file or Hub name; or word, unigram, bpe: made from the task's training split
    )
    vocab_size: int = 8000  #: of a tokenizer that is made from the task
    batch_size: int = 32  #: examples in a step, over all processes and micro-batches together
    max_input: int | None = None  #: tokens; longer inputs are cut. By default what the model takes
    max_target: int | None = None
    limit: int | None = None  #: train on the first so many examples
    buckets: int = 4  #: number of padded shapes, each compiles once; 1: all kinds of lengths in every batch
    workers: int | None = None  #: processes that make batches; by default 0 on a CPU, 2 on a GPU
    augment: bool = False  #: images: AutoAugment, mixup, cutmix and label smoothing as gMLP's Table 7


@dataclass
class OptimizerConfig:
    """AdamW, or Adafactor as T5 runs it."""

    name: Literal["adamw", "adafactor"] = "adamw"
    lr: float | None = None  #: peak, or the schedule's factor; by default 0.128 / d_model (adamw) or 1e-3 (adafactor)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0  #: not on norms, biases and other one-dimensional parameters
    clip: float = 1.0  #: largest norm of the gradient; 0 turns it off

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas must be two numbers in [0, 1); got {list(self.betas)}")


@dataclass
class ScheduleConfig:
    """How the learning rate goes: see `tokenmix.training.schedules`."""

    name: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "linear"
    warmup: float = 0.05  #: steps, or a share of the run where it is below 1
    ramp: bool = True  #: inverse_sqrt: rise during warm-up; T5 holds the rate instead
    decay: float = 0.0  #: constant: the share of the run, at its end, in which the rate falls to 0

    def __post_init__(self) -> None:
        if self.decay > 1:
            raise ValueError(f"schedule.decay is a share of the run, at most 1; got {self.decay!r}")
        if self.decay > 0 and self.name != "constant":
            raise ValueError(
                f"schedule.decay belongs to schedule.name=constant, a {self.name} rate falls by itself; leave out one"
            )


@dataclass
class BudgetConfig:
    """When a run is over: whichever is reached first; 3,000 steps where nothing is said."""

    steps: int | None = None
    epochs: float | None = None
    tokens: float | None = None  #: of inputs and targets, padding not counted
    flops: float | None = None  #: arithmetic of the training steps, padding counted
    minutes: float | None = None  #: of training, validation not counted

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "tokens", "flops", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"budget.{name} must be positive; got {value!r}")


@dataclass
class ValidationConfig:
    """Loss and the task's own metric, during the run and at its end."""

    every: int | None = None  #: steps; by default a fifth of the run; 0 only at the end
    split: str | None = None  #: by default `validation`, else the task's default split
    examples: int | None = 512  #: so many of them (None: all)
    metric: bool = True  #: the task's metric, with generation where the task generates; False: loss alone
    beams: int = 1
    patience: int | None = None  #: stop after so many validations without improvement; by default never


@dataclass
class CheckpointConfig:
    """What is kept."""

    every: int | None = None  #: steps between checkpoints; by default a fifth of the run
    keep_last: int = 2
    keep_every: int | None = None  #: checkpoints at multiples of this step stay for good
    final: Literal["last", "best"] = "last"  #: which weights become RUN/model.safetensors


@dataclass
class DeviceConfig:
    """Where it runs."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"  #: auto: bf16 autocast on a GPU, fp32 on a CPU
    compile: bool | None = None  #: torch.compile; by default on a GPU
    skip_padding: bool = False  #: compiled seq2seq models: compute the real tokens alone, as others do on a CPU
    cuda_graphs: bool | None = None  #: by default on one GPU for models under 400M parameters
    threads: int | None = None  #: of the CPU; recorded, since they change the last bits
    accumulate: int = 1  #: micro-batches per step
    auto_batch: bool = False  #: out of memory: halve the micro-batch and accumulate
    sharding: Literal["none", "fsdp"] = "none"  #: several processes: replicate (DDP) or shard (FSDP2)
    gradient_checkpointing: bool = False


LEAST = {  # smallest value of a number
    "seed": 0, "log_every": 1, "data.vocab_size": 1, "data.batch_size": 1, "data.max_input": 1, "data.max_target": 1,
    "data.limit": 1, "data.buckets": 1, "data.workers": 0, "optimizer.lr": 0, "optimizer.eps": 0, "optimizer.weight_decay": 0,
    "optimizer.clip": 0, "schedule.warmup": 0, "schedule.decay": 0, "validation.every": 0, "validation.examples": 1,
    "validation.beams": 1, "validation.patience": 1, "checkpoints.every": 0, "checkpoints.keep_last": 1,
    "checkpoints.keep_every": 1, "device.threads": 1, "device.accumulate": 1,
}  # fmt: skip


@dataclass
class RunConfig:
    """Everything that a run needs. `to_dict` and `of` are inverse to each other."""

    out: str = "runs/run"
    seed: int = 0
    preset: str | None = None  #: named training settings (`tokenmix.training.presets`), below what is said here
    resume: str = "no"  #: "no", "auto" or a step
    on_nonfinite: Literal["stop", "skip"] = "stop"  #: NaN or infinite loss
    log_every: int = 10
    tensorboard: bool = True
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    def __post_init__(self) -> None:
        for path, least in LEAST.items():
            group, _, name = path.rpartition(".")
            value = getattr(getattr(self, group) if group else self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{path} must be at least {least}; got {value!r}")
            if value == math.inf:
                raise ValueError(f"{path} must be a finite number; got {value!r}")
        if self.device.accumulate > self.data.batch_size:
            raise ValueError(
                f"device.accumulate={self.device.accumulate} micro-batches of data.batch_size={self.data.batch_size} examples: "
                "take at most one per example"
            )
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2⁶³; got {self.seed}")

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> RunConfig:
        """From nested dictionaries, later ones over earlier ones; a training preset that they name lies below all."""
        merged = merge(*layers)
        if merged.get("preset"):
            from tokenmix.training.presets import training_preset

            merged = merge(training_preset(merged["preset"]), merged)
        return _build(cls, merged, "")

    @classmethod
    def read(cls, path: str | Path, *layers: Mapping[str, Any]) -> RunConfig:
        """From a YAML or JSON file, ``layers`` over it."""
        return cls.of(read_layer(path), *layers)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as a file holds them."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def write(self, path: str | Path) -> None:
        """As YAML."""
        Path(path).write_text(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_layer(path: str | Path) -> dict[str, Any]:
    """The nested dictionary of a YAML or JSON file."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))  # JSON is YAML
    except OSError as error:
        raise ValueError(f"cannot read the configuration {path} ({error.strerror}); give a YAML or JSON file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no readable YAML or JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {type(values).__name__}; expected keys such as model, data and budget")
    return values


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries as one, later ones over earlier ones.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = merge(out[key], value) if both else (merge(value) if isinstance(value, Mapping) else value)
    return out


def dotted(assignments: Mapping[str, Any]) -> dict[str, Any]:
    """`{"optimizer.lr": 1e-3}` as nested dictionaries; None values are left out.

    >>> dotted({"optimizer.lr": 0.1, "seed": 3, "out": None})
    {'optimizer': {'lr': 0.1}, 'seed': 3}
    """
    out: dict[str, Any] = {}
    for path, value in assignments.items():
        if value is None:
            continue
        *parents, last = path.split(".")
        place = out
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return out


def setting(text: str) -> Any:
    """What a value on the command line says: JSON, in which 1e-5 is a number, else YAML, in which words need no quotes.

    >>> setting("1e-5"), setting("bf16"), setting("null")
    (1e-05, 'bf16', None)
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise ValueError(
            f"cannot read the value {text!r} ({problem}); give JSON or YAML, such as [0.9, 0.95]"
        ) from None


def assignment(text: str) -> dict[str, Any]:
    """`optimizer.lr=1e-3` as a nested dictionary: what `--set` takes. `null` is None, `validation.examples=null` all.

    >>> assignment("optimizer.clip=0.5")
    {'optimizer': {'clip': 0.5}}
    """
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ValueError(f"--set {text!r}: expected KEY=VALUE, for example --set optimizer.lr=1e-3")
    made = setting(value)
    for name in reversed(path.strip().split(".")):
        made = {name: made}
    return made


def _build(kind: type, values: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise unknown(f"key in {where or 'the configuration'}", key, hints)
    made = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ValueError(
                    f"{path} holds {value!r}; expected keys such as {', '.join(typing.get_type_hints(hints[key]))}"
                )
            made[key] = _build(hints[key], value, path)
        else:
            made[key] = _coerce(value, hints[key], path)
    return kind(**made)


def _coerce(value: Any, hint: Any, path: str) -> Any:
    """``value`` as ``hint`` wants it; numbers may come as text (YAML reads 1e-3 so)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _coerce(value, next(a for a in arguments if a is not type(None)), path)
    if origin is Literal:
        if value not in arguments:
            raise unknown(f"value of {path}", value, map(str, arguments))
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or len(value) != len(arguments):
            raise ValueError(f"{path} must be {len(arguments)} values; got {value!r}")
        return tuple(_coerce(v, a, path) for v, a in zip(value, arguments))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be keys and values; got {value!r}")
        return dict(value)
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{path} must be true or false; got {value!r}")
        return value
    if hint in (int, float):
        try:
            number = float(value) if not isinstance(value, bool) else None
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or (hint is int and not number.is_integer()):
            raise ValueError(f"{path} must be {'a whole number' if hint is int else 'a number'}; got {value!r}")
        return int(value) if isinstance(value, int) else hint(number)
    return value if value is None else str(value)
