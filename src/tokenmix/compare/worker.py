"""One run of a comparison: train, judge, and leave everything in the run's folder, so that nothing is done twice.

    RUN/…                    what `tokenmix train` leaves
    RUN/trained.json         written once the training is over
    RUN/judged-KEY.json      metrics on the judged split, by category and example
    RUN/live.json            where it stands, for the live view

A run that was killed goes on; one that is finished is read. As a program it is what `--jobs` starts:
`python -m tokenmix.compare.worker PARENT SPEC.json …`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenmix.compare.plan import Judging, RunSpec
from tokenmix.data.mixtures import MIXTURES
from tokenmix.training import Callback, RunConfig
from tokenmix.training.config import read_layer
from tokenmix.training.faults import FolderInUse

logger = logging.getLogger(__name__)
PER_EXAMPLE = ("exact_match", "accuracy")  # metrics that are a mean over examples
POINTS = 200  # of a learning curve that is kept
GRACE = 30.0  # seconds that a run has to save itself
SMALL = 50e6  # parameters of a model that a GPU is too large for


class Interrupted(Exception):
    """The run was asked to stop; it can go on from its last checkpoint."""


def execute(spec: RunSpec) -> dict[str, Any]:
    """Train and judge; an error becomes a record with status "failed". Ctrl-C and SIGTERM raise `Interrupted`."""
    folder = Path(spec.folder)
    record: dict[str, Any] = {"model": spec.model, "seed": spec.seed, "folder": spec.folder, "error": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _quiet():
            trained = _trained(spec, folder)
            judged = _judged(spec, folder, trained)
        _write(folder / "live.json", {"phase": "done", "step": trained["steps"], "fraction": 1.0})
        return {**record, **trained, **judged, "device": _device(folder), "status": "done"}
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever it is: this run is shown as failed, the others go on
        text = " ".join(str(error).split()) or type(error).__name__
        known = isinstance(error, (ValueError, OSError))
        message = text if known else f"{type(error).__name__}: {text}"
        with contextlib.suppress(OSError):
            (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            _write(folder / "live.json", {"phase": "failed", "error": message})
        logger.debug("%s failed", spec.label, exc_info=True)
        return {**record, "status": "failed", "error": message, **_empty()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No bars and load reports of transformers: they would tear the live view."""
    import transformers

    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)
        transformers.utils.logging.enable_progress_bar()


def _empty() -> dict[str, Any]:
    return {"steps": None, "seconds": None, "curve": [], "metrics": {}, "categories": {}, "scores": None}


def _device(folder: Path) -> str | None:
    """Where the run was trained, which need not be where it is read."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        return json.loads((folder / "environment.json").read_text(encoding="utf-8"))["device"]
    return None


def finished(spec: RunSpec) -> dict[str, Any] | None:
    """The record of a run that is complete, read from its folder; else None."""
    folder = Path(spec.folder)
    if (folder / "trained.json").exists() and (folder / _judged_name(spec.judging)).exists():
        return execute(spec)
    return None


# ------------------------------------------------------------------------------------------------------------ training


def _trained(spec: RunSpec, folder: Path) -> dict[str, Any]:
    from tokenmix.training import train

    path, told = folder / "trained.json", False
    while not path.exists():
        config = RunConfig.of(spec.config)
        # it goes on with the threads that it began with: they change the last bits
        if (folder / "config.yaml").exists():
            config.device.threads = (read_layer(folder / "config.yaml").get("device") or {}).get("threads")
        reset_peak_memory()
        try:
            result = train(config, callbacks=[LiveFile(folder), Kept(path, config)])
        except FolderInUse as error:  # another command is at it: its result is ours, too
            if not told:
                logger.info("%s: %s", spec.label, error)
            told = True
            time.sleep(1.0)
            continue
        if result.status == "interrupted":
            raise Interrupted(spec.label)
    return json.loads(path.read_text(encoding="utf-8"))


class Kept(Callback):
    """Writes trained.json at the end of a run, while its folder is still locked: who waits for the folder finds it."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path, self.config = path, config

    def on_end(self, result: Any) -> None:
        if result.status == "interrupted":
            return
        curve, memory = read_curve(self.path.parent)
        trained = {
            "steps": result.steps,
            "seconds": result.seconds,
            "parameters": result.parameters,
            "flops_step": result.flops / max(1, result.steps),
            "flops_forward": result.flops / max(1, result.steps) / 3 / self.config.data.batch_size,
            "steps_per_second": result.steps / result.seconds if result.seconds else None,
            "memory_bytes": memory,
            "tokens": result.tokens,
            "stopped": result.status,
            "validation": result.metrics,
            "curve": curve,
            "config": _model_config(self.path.parent),
        }
        _write(self.path, trained)


def _model_config(folder: Path) -> dict[str, Any]:
    from tokenmix.models import TokenmixConfig
    from tokenmix.models.create import plain

    config = TokenmixConfig.from_pretrained(folder)
    dropped = ("id2label", "label2id", "problem_type")
    return {
        k: v
        for k, v in {**plain(config), "max_length": config.max_length}.items()
        if v is not None and k not in dropped
    }


def read_curve(folder: Path) -> tuple[list[dict[str, float]], int | None]:
    """The learning curve in metrics.jsonl, thinned (training and validation), and the peak of memory."""
    points: dict[int, dict[str, float]] = {}
    memory = 0.0
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            point = points.setdefault(record["step"], {"step": record["step"]})
            if record["kind"] == "train":
                memory = max(memory, record.get("memory_gb") or 0.0)
                point |= {name: record[name] for name in ("loss", "tokens", "flops", "seconds")}
            else:
                names = [k for k in record if k not in ("kind", "step", "seconds", "time", "loss")]
                point |= {"validation_loss": record.get("loss")} | ({"metric": record[names[0]]} if names else {})
    curve = [points[step] for step in sorted(points)]
    every = -(-len(curve) // POINTS)
    thin = [
        p for number, p in enumerate(curve) if number % max(1, every) == 0 or "validation_loss" in p or p is curve[-1]
    ]
    return thin, round(memory * 1e9) if memory else None


def reset_peak_memory() -> None:
    """Forget the memory that earlier runs of this process used."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: resets the process's high-water mark


# ------------------------------------------------------------------------------------------------------------- judging


def _judged_name(judging: Judging) -> str:
    text = json.dumps(dataclasses.asdict(judging), sort_keys=True)
    return f"judged-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"


def _judged(spec: RunSpec, folder: Path, trained: dict[str, Any]) -> dict[str, Any]:
    path = folder / _judged_name(spec.judging)
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    _write(folder / "live.json", {"phase": "evaluating", "step": trained["steps"], "fraction": 1.0})
    judged = judge(RunConfig.of(spec.config), folder, spec.judging, trained["validation"])
    _write(path, judged)
    return judged


def judge(config: RunConfig, folder: Path, judging: Judging, validation: dict[str, float]) -> dict[str, Any]:
    """Metrics on the judged split, by category (`exact_match/NAME`) and, where the metric allows, by example.

    Text without labels, and mixtures, are judged by the validation at the end of the run.
    """
    name = config.data.task
    if name in MIXTURES:  # `mean`, then `task/metric`: the first of each task is its headline
        tasks: dict[str, float] = {}
        for key, value in validation.items():
            if "/" in key:
                tasks.setdefault(key.split("/")[0], value)
        return {"metrics": validation, "categories": tasks, "scores": None}
    import torch

    from tokenmix.data.task import get_task
    from tokenmix.data.tokenizers import load_tokenizer
    from tokenmix.evaluation.predictions import BATCH, predict
    from tokenmix.evaluation.weights import read_weights, weight_metrics
    from tokenmix.models import TokenmixConfig
    from tokenmix.models.create import HEADS as MODELS
    from tokenmix.training.features import HEADS, choose_form, features_for

    model_config = TokenmixConfig.from_pretrained(folder)
    text = name.startswith("shards:") or bool(set(validation) & {"perplexity", "word_perplexity"})
    form = "document" if text else choose_form(get_task(name), model_config.body, config.data.form)
    model: Any = MODELS[HEADS[model_config.body, form]].from_pretrained(folder)
    of_weights = weight_metrics(model, read_weights(config.model.weights) if config.model.weights else None)
    if text:
        return _split_categories({**validation, **of_weights}) | {"scores": None}
    task = get_task(name)
    on_gpu = config.device.device != "cpu" and torch.cuda.is_available()
    model.to("cuda" if on_gpu else "cpu")
    precision = config.device.precision if config.device.precision != "auto" else "bf16" if on_gpu else "fp32"
    tokenizer = None if form == "image" else load_tokenizer(folder)
    maker = features_for(form, model.config, tokenizer, task, config.data.max_input, config.data.max_target)
    split = judging.split or task.default_split
    examples = task.load(split, config.data.folder, form, judging.examples)
    examples = [e for e in examples if form != "classify" or e.label is not None]
    beams: dict[str, Any] = {"num_beams": judging.beams} if form == "text" and judging.beams > 1 else {}
    small = on_gpu and model.num_parameters() < SMALL  # hundreds of rows take it as long as a few
    rows = 4 * BATCH if small else BATCH
    predictions = predict(model, maker, form, examples, task, batch_size=rows, precision=precision, **beams)
    metrics = task.evaluate(predictions, examples)
    metric = judging.metric or task.metric
    if "loss" in validation:
        metrics.setdefault("loss", validation["loss"])
    scores = None
    if metric in PER_EXAMPLE:
        scores = [round(task.evaluate([p], [e])[metric], 4) for p, e in zip(predictions, examples)]
    return _split_categories({**metrics, **of_weights}) | {"scores": scores}


def _split_categories(metrics: dict[str, float]) -> dict[str, Any]:
    categories = {name.split("/", 1)[1]: value for name, value in metrics.items() if "/" in name}
    return {"metrics": {n: v for n, v in metrics.items() if "/" not in n}, "categories": categories}


# ------------------------------------------------------------------------------------------------------- being watched


class LiveFile(Callback):
    """Writes where a run stands to RUN/live.json, at most twice a second."""

    def __init__(self, folder: Path) -> None:
        self.path, self._written = folder / "live.json", 0.0
        self.state: dict[str, Any] = {"phase": "starting"}

    def on_start(self, run: dict[str, Any]) -> None:
        _write(self.path, self.state)

    def on_step(self, step: int, fraction: float) -> None:
        self.state = {**self.state, "phase": "training", "step": step, "fraction": fraction}
        self._show()

    def on_log(self, record: dict[str, Any]) -> None:
        self.state |= {"loss": record["loss"], "left": record.get("seconds_left")}
        self._show()

    def on_validation(self, record: dict[str, Any]) -> None:
        names = [k for k in record if k not in ("kind", "step", "seconds", "time", "loss")]
        if names:
            self.state |= {"metric": names[0], "value": record[names[0]]}
        self._show()

    def _show(self) -> None:
        if time.monotonic() - self._written > 0.5:
            self._written = time.monotonic()
            _write(self.path, self.state)


def _write(path: Path, value: Any) -> None:
    """JSON, whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value), encoding="utf-8")
    os.replace(aside, path)


# --------------------------------------------------------------------------------------------------- as its own program


def spec_from_dict(values: dict[str, Any]) -> RunSpec:
    """The inverse of `dataclasses.asdict`."""
    return RunSpec(**{**values, "judging": Judging(**values["judging"])})


def die_with(parent: int) -> None:
    """A comparison that is killed leaves no runs behind that go on unseen: they save themselves and stop."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def record_path(folder: Path | str, parent: int) -> Path:
    """Where a worker leaves the record of a run for the command that started it; another one may share the folder."""
    return Path(folder) / f"record-{parent}.json"


def main(arguments: list[str]) -> int:
    """`python -m tokenmix.compare.worker PARENT SPEC.json …`: one run after another, up to the first that fails (what comes
    after it deserves a fresh process); each record goes beside its specification."""
    parent, *paths = arguments
    die_with(int(parent))
    for path in map(Path, paths):
        spec = spec_from_dict(json.loads(path.read_text(encoding="utf-8")))
        try:
            record = execute(spec)
        except (Interrupted, KeyboardInterrupt):
            return 130
        _write(record_path(path.parent, int(parent)), record)
        if record["status"] == "failed":
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
