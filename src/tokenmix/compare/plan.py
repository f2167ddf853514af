"""What a comparison runs: models × seeds, each a whole training configuration with a folder named after its contents.

>>> contender("random + dot | geglu").model["layer"]
'random + dot | geglu'
>>> contender("gmlp ; dot | geglu").model["options"]
{'decoder_layer': 'dot | geglu'}
>>> contender("trnsformer")
Traceback (most recent call last):
ValueError: unknown model 'trnsformer'; did you mean 'transformer'? Known: amlp, …
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmix.data.mixtures import MIXTURES
from tokenmix.data.task import Task, get_task
from tokenmix.mixers import parse
from tokenmix.mixers.expression import Expression
from tokenmix.models.presets import PRESETS, preset_config
from tokenmix.naming import unknown
from tokenmix.training.config import RunConfig, merge

# Short names for layers, beside the presets. `encoder ; decoder` gives the decoder of a seq2seq model its own layer.
ALIASES = {
    "transformer": "dot | geglu",
    "synthesizer-r": "random | geglu",
    "synthesizer-fix": "random(fixed=True) | geglu",
    "synthesizer-fr": "factorized_random | geglu",
    "synthesizer-d": "dense | geglu",
    "synthesizer-fd": "factorized_dense | geglu",
    "synthesizer-rd": "random + dense | geglu",
    "synthesizer-rv": "random + dot | geglu",
    "synthesizer-dv": "dense + dot | geglu",
    "synthesizer-frv": "factorized_random + dot | geglu",
    "remixer": "dot | remix",
    "gmlp": "gmlp",
    "amlp": "gmlp(attention=64)",
    "gmlp-encoder": "gmlp ; dot | geglu",
    "amlp-encoder": "gmlp(attention=64) ; dot | geglu",
    "mixer": "token_mlp | mlp",
    "mixer-encoder": "token_mlp | mlp ; dot | geglu",
    "linformer": "linformer | mlp",
    "lightconv": "lightconv | mlp",
    "dynamicconv": "dynamicconv | mlp",
    "fnet": "fourier | mlp",
    "relative": "relative | mlp",
    "cbow": "bag_of_words | mlp",
}
# What does not change a run's result (threads change its last bits: a run that goes on keeps those it began with).
VOLATILE = ("out", "resume", "log_every", "tensorboard")
VOLATILE_PARTS = {"device": ("threads",), "data": ("workers", "folder")}
LOWER_IS_BETTER = ("loss", "perplexity", "word_perplexity")


@dataclass(frozen=True)
class Contender:
    """A model in a comparison: its name in the table, and the `model` section of its runs."""

    name: str
    model: dict[str, Any]


@dataclass(frozen=True)
class Judging:
    """How a trained model is judged."""

    split: str | None = None  #: by default the task's own
    examples: int | None = None  #: the first so many; by default all
    beams: int = 1
    metric: str | None = None  #: by default the task's headline


@dataclass(frozen=True)
class RunSpec:
    """One run: which model and seed, its whole configuration, and its folder."""

    model: str
    seed: int
    folder: str
    config: dict[str, Any]
    judging: Judging = field(default_factory=Judging)

    @property
    def label(self) -> str:
        """What the live view calls it."""
        return f"{self.model}, seed {self.seed}"


def contender(text: str) -> Contender:
    """Read `PRESET`, `ALIAS`, a layer expression, `ENCODER ; DECODER`, or any of these after `NAME=`."""
    named = re.fullmatch(r"\s*([A-Za-z0-9][\w .+()-]*?)\s*=\s*(\S.*)", text)
    name = None
    if named and named[1].count("(") == named[1].count(")"):
        name, text = named[1], named[2]
    text = text.strip()
    if text in PRESETS:
        return Contender(name or text, {"name": text})
    if re.fullmatch(r"[\w.-]+", text) and text not in ALIASES:
        try:
            parse(text)
        except ValueError:
            raise unknown("model", text, [*ALIASES, *PRESETS]) from None
    encoder, semicolon, decoder = ALIASES.get(text, text).partition(";")
    model: dict[str, Any] = {"layer": str(parse(encoder.strip()))}
    if semicolon:
        model["options"] = {"decoder_layer": str(parse(decoder.strip()))}
    return Contender(name or text, model)


def contenders(models: Sequence[str | Expression | Contender]) -> list[Contender]:
    """All models of a comparison; two of one name are an error."""
    if not models:
        raise ValueError("no models: give at least one, for example --models transformer 'random | geglu' remixer")
    if isinstance(models, (str, Expression, Contender)):
        raise ValueError(f"models are a list; got {str(models)!r} alone")
    found = []
    for model in models:
        if not isinstance(model, (str, Expression, Contender)):
            raise ValueError(f"a model is a preset's name, a layer expression or a Contender; got {model!r}")
        found.append(model if isinstance(model, Contender) else contender(str(model)))
    names = [entry.name for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two models are called {name!r}; give one another name: 'other name={name}'")
    return found


def run_key(config: Mapping[str, Any]) -> str:
    """A short hash of everything that decides a run's result and is not as by default, so that settings which are new
    in a later version leave it as it is.

    >>> run_key({"seed": 0, "out": "a"}) == run_key({"seed": 0, "out": "b"}) != run_key({"seed": 1})
    True
    """
    kept: dict[str, Any] = {name: value for name, value in config.items() if name not in VOLATILE}
    for name, default in RunConfig().to_dict().items():
        if isinstance(kept.get(name), Mapping):
            parts = VOLATILE_PARTS.get(name, ())
            own = {key: value for key, value in kept[name].items() if key not in parts}
            kept[name] = {key: value for key, value in own.items() if key not in default or value != default[key]}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:10]


def specs(
    models: Sequence[Contender],
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    out: str | Path,
    *,
    judging: Judging | None = None,
    threads: int | None = None,
    weights: Mapping[tuple[str, int], str] | None = None,
) -> list[RunSpec]:
    """Every run, seed by seed, so that the first complete row of the table comes early.

    ``settings``: a part of a `RunConfig`, the same for all. ``weights``: folders to start from, by (model, seed).
    """
    found = []
    for seed in seeds:
        for entry in models:
            start = {"weights": weights[entry.name, seed]} if weights else {}
            if start:  # the weights bring layer and sizes with them
                model = {**start, "options": dict((settings.get("model") or {}).get("options") or {})}
                above = {**settings, "model": {**(settings.get("model") or {}), **model}}
            else:
                above = merge(settings, {"model": entry.model})
            config = RunConfig.of(above, {"seed": seed, "resume": "auto", "tensorboard": False})
            if config.device.threads is None:
                config.device.threads = threads
            key = run_key(config.to_dict())
            config.out = str(Path(out) / "runs" / f"{slug(entry.name)}-seed{seed}-{key}")
            found.append(RunSpec(entry.name, seed, config.out, config.to_dict(), judging or Judging()))
    return found


def slug(name: str) -> str:
    """A name as part of a path.

    >>> slug("random + dot | geglu")
    'random-dot-geglu'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "model"


def default_threads(jobs: int = 1) -> int:
    """CPU threads of a run where ``jobs`` run side by side; the same whichever engine runs them.

    $OMP_NUM_THREADS bounds them, as everywhere in torch.
    """
    import torch

    return max(1, min(os.cpu_count() or 1, torch.get_num_threads()) // max(1, jobs))


# ------------------------------------------------------------------------------------- what a person may get wrong


def check_task(settings: Mapping[str, Any], judging: Judging) -> Task | None:
    """The task, its data present and its metric known; None for a mixture or shards."""
    config = RunConfig.of(settings)
    name = config.data.task
    if name.startswith("shards:") or name in MIXTURES:
        return None
    task = get_task(name)
    split = judging.split or task.default_split
    for needed in dict.fromkeys(("train", split)):
        task.source(needed, config.data.folder)
        next(iter(task.stream(needed, config.data.folder)), None)
    if judging.metric is not None and judging.metric not in metric_names(task, split, config.data.folder):
        raise unknown(f"metric of task {name!r}", judging.metric, metric_names(task, split, config.data.folder))
    return task


def metric_names(task: Task, split: str, folder: str | None = None) -> list[str]:
    """What evaluation on a task reports: found by scoring the truth of a few examples."""
    if task.forms[0] == "document":
        return ["perplexity", "loss"]
    examples = task.load(split, folder, None, 8)
    truth: list[Any] = []
    for example in examples:
        if task.forms[0] == "text":
            truth.append(task.postprocess(example.target, example))
        else:
            truth.append(example.label if example.label is not None else (example.answers or ("",))[0])
    return [name for name in task.evaluate(truth, examples) if "/" not in name] + ["loss"]


def check_models(models: Sequence[Contender], body: str | None, options: Mapping[str, Any]) -> None:
    """Each model can be built for its body: a mistake shows before anything is trained."""
    from tokenmix.models import TokenmixConfig
    from tokenmix.models.counting import one_layer_of

    for entry in models:
        more = {**options, **entry.model.get("options", {})}
        try:
            if "name" in entry.model:
                config = preset_config(entry.model["name"], **more)
            else:
                config = TokenmixConfig(
                    **{"d_model": 64, "heads": 4, "body": body, "layer": entry.model["layer"], **more}
                )
            with one_layer_of(config):
                pass
        except (ValueError, TypeError) as error:
            raise ValueError(f"model {entry.name!r}: {error}") from None


def check_folder(out: str | Path) -> Path:
    """The folder, made and writable."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder with --out"
        ) from None
    return folder
