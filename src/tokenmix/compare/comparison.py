"""A whole comparison: plan it, run it, and write down what came of it.

    OUT/comparison.json      everything (docs/comparison.md says what)
    OUT/table.csv, table.md  the table
    OUT/report.html          the page
    OUT/runs/…               one folder per run

>>> result = compare(["transformer", "random | geglu"], {"data": {"task": "scan"}, "budget": {"steps": 500}}, seeds=3)
>>> result["models"][1]["difference"], result["models"][1]["significant"]
(-3.1, True)
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmix.compare import engine as engines
from tokenmix.compare.live import Live
from tokenmix.compare.match import RULES, match
from tokenmix.compare.plan import (
    LOWER_IS_BETTER,
    Contender,
    Judging,
    RunSpec,
    check_folder,
    check_models,
    check_task,
    contenders,
    default_threads,
    specs,
)
from tokenmix.compare.statistics import deviation, difference, mean
from tokenmix.compare.table import write_tables
from tokenmix.compare.worker import Interrupted
from tokenmix.mixers.expression import Expression
from tokenmix.naming import unknown
from tokenmix.training import RunConfig
from tokenmix.training.config import merge

logger = logging.getLogger(__name__)
PER_MODEL = ("parameters", "flops_forward", "flops_step", "steps_per_second", "memory_bytes", "config")


def compare(
    models: Sequence[str | Expression | Contender],
    settings: Mapping[str, Any],
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path = "runs/compare",
    rule: str = "none",
    judging: Judging | None = None,
    baseline: str | None = None,
    engine: str = "local",
    jobs: int = 1,
    weights: Mapping[tuple[str, int], str] | None = None,
    live: Live | None = None,
    command: str | None = None,
    report: bool = True,
    pool: str | Path | None = None,
    collect: bool = False,
    known: Collection[tuple[str, int]] = (),
) -> dict[str, Any]:
    """Train every model with every seed under the same budget on the same batches, judge them, and compare.

    Args:
        models: presets, aliases, layer expressions as text or objects, contenders; the first is the baseline unless
            ``baseline`` names another.
        settings: a part of a `RunConfig` (data, budget, optimizer, model.options, …), the same for all.
        seeds: how many, or which.
        rule: "params", "flops" or "none": see `tokenmix.compare.match`.
        judging: split, number of examples, beams and metric of the final evaluation.
        engine: "local" or "ray". jobs: runs side by side.
        weights: folders to start from, by (model, seed).
        live: who shows the progress.
        pool: folder of the runs, where comparisons share it; by default ``out``.
        collect: train nothing, put together what is finished.
        known: (model, seed) of runs whose numbers the caller has; they are left out.
    """
    judging = judging or Judging()
    settings = dict(settings)
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not seeds:
        raise ValueError("no seeds: give --seeds a number of at least 1")
    if rule not in RULES:
        raise unknown("rule for --match", rule, RULES)
    if engine not in engines.ENGINES:
        raise unknown("engine", engine, engines.ENGINES)
    task = check_task(settings, judging)
    entries = contenders(models)
    reference = _baseline(entries, baseline)
    folder = check_folder(out)
    achieved: dict[str, Any] = {}
    if not weights:
        check_models(entries, body_of(settings, task), (settings.get("model") or {}).get("options") or {})
        if rule != "none":
            entries, achieved = matched(entries, reference, settings, rule)
    runs = specs(
        entries, settings, seeds, pool or folder, judging=judging, threads=default_threads(jobs), weights=weights
    )
    about = _about(runs[0], task, judging, settings, reference, rule, achieved, command)
    records: dict[str, dict[str, Any]] = {}
    result: dict[str, Any] = {}

    def save(record: dict[str, Any] | None = None) -> None:
        nonlocal result
        if record is not None:
            records[record["folder"]] = record
        result = collected(about, entries, runs, records)
        _write_json(folder / "comparison.json", result)

    live = live or Live()
    todo = [run for run in runs if (run.model, run.seed) not in known]
    save()
    with live.watching(todo):

        def told(record: dict[str, Any]) -> None:
            save(record)
            live.ended(record)

        try:
            engines.run_all(todo, engine=engine, jobs=jobs, collect=collect, on_record=told)
        except Interrupted:
            save()
            logger.warning("stopped; the same command goes on from what its runs have saved → %s", folder)
            raise KeyboardInterrupt from None
    write_tables(result, folder)
    if report:
        write_report(folder)
    return result


def write_report(folder: Path) -> Path | None:
    """The page of a comparison; without it (its module is not there) the table stands alone."""
    try:
        from tokenmix.report import write_report as write
    except ImportError as error:
        logger.info("no report.html: %s", error)
        return None
    write(folder)
    return folder / "report.html"


# -------------------------------------------------------------------------------------------------------------- sizes


def matched(
    entries: Sequence[Contender], reference: str, settings: Mapping[str, Any], rule: str
) -> tuple[list[Contender], dict[str, Any]]:
    """The models with their widths adjusted to the baseline's size, and how close each came."""
    from tokenmix.training.build import build

    configs, shape = {}, None
    fitted: dict[str, Any] = {}
    for entry in sorted(entries, key=lambda entry: entry.name != reference):
        config = RunConfig.of(merge(settings, {"model": entry.model}))
        if not fitted:  # the data decides vocabulary, lengths and labels, once
            parts = build(config)
            configs[entry.name] = parts.model.config
            kept = ("vocab_size", "max_length", "pad_token_id", "eos_token_id", "decoder_start_token_id", "num_labels")
            fitted = {name: getattr(parts.model.config, name) for name in kept}
            if parts.model.config.body == "vision":
                fitted.pop("max_length")
            sizes = parts.examples.sizes()
            shape = (int(sizes[:, 0].mean().round()) or 1, int(sizes[:, 1].mean().round()))
        else:
            configs[entry.name] = _model_config(config, fitted, configs[reference])
    found = match(configs[reference], {name: c for name, c in configs.items() if name != reference}, rule, shape)
    out = []
    for entry in entries:
        if entry.name in found:
            options = {**entry.model.get("options", {}), **found[entry.name].options}
            out.append(Contender(entry.name, {**entry.model, "options": options}))
        else:
            out.append(entry)
    return out, {name: value.as_dict() for name, value in found.items()}


def _model_config(config: RunConfig, fitted: Mapping[str, Any], reference: Any) -> Any:
    """The configuration that `build` would make, the data's part of it taken from the baseline's."""
    from tokenmix.models import TokenmixConfig, preset_config
    from tokenmix.models.create import plain
    from tokenmix.training.build import SMALL

    options = dict(config.model.options)
    if config.model.name:
        base = preset_config(config.model.name, **({"layer": config.model.layer} if config.model.layer else {}))
    else:
        sizes: dict[str, Any] = dict(SMALL)
        if reference.body == "vision":
            sizes.pop("max_length")
            sizes |= {"image_size": 28, "patch_size": 7, "channels": 1}
        base = TokenmixConfig(body=config.model.body or reference.body, layer=str(config.model.layer), **sizes)
    labels = fitted["num_labels"]
    rest = {name: value for name, value in fitted.items() if name != "num_labels"}
    kept = {name: value for name, value in plain(base).items() if name not in ("id2label", "label2id")}
    return TokenmixConfig(**{**kept, "num_labels": labels, **rest, **options})


# ---------------------------------------------------------------------------------------------------------- collecting


def _baseline(entries: Sequence[Contender], wanted: str | None) -> str:
    names = [entry.name for entry in entries]
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise unknown("baseline", wanted, names)
    return wanted


def body_of(settings: Mapping[str, Any], task: Any) -> str | None:
    """The body that is asked for, or the one that does the task's form."""
    from tokenmix.training.features import HEADS

    body = (settings.get("model") or {}).get("body")
    if body:
        return body
    wanted = (settings.get("data") or {}).get("form")
    forms = (wanted,) if wanted else task.forms if task is not None else ("text",)
    return next(
        (b for b in ("seq2seq", "encoder", "vision", "decoder") if any((b, f) in HEADS for f in forms)), "seq2seq"
    )


def _about(
    run: RunSpec,
    task: Any,
    judging: Judging,
    settings: Mapping[str, Any],
    baseline: str,
    rule: str,
    achieved: Mapping[str, Any],
    command: str | None,
) -> dict[str, Any]:
    config = RunConfig.of(run.config)
    metric = judging.metric or (task.metric if task is not None else "mean")
    split = judging.split or (task.default_split if task is not None else "validation")
    if task is not None and task.forms[0] == "document":
        split = config.validation.split or "validation"
    budget = {name: value for name, value in run.config["budget"].items() if value is not None} or {"steps": 3000}
    return {
        "task": config.data.task,
        "form": config.data.form or (task.forms[0] if task is not None else "text"),
        "split": split,
        "examples": judging.examples,
        "metric": metric,
        "higher_is_better": metric not in LOWER_IS_BETTER,
        "budget": {**budget, "batch_size": config.data.batch_size},
        "match": {"rule": rule, "meaning": RULES[rule], "baseline": baseline, "achieved": dict(achieved)},
        "baseline": baseline,
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "settings": json.loads(json.dumps(settings)),
        "versions": versions(),
        "hardware": hardware(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "note": task.about(data=config.data.folder) if task is not None else "",
    }


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    import importlib.metadata

    import tokenmix

    found = {"python": platform.python_version(), "tokenmix": tokenmix.__version__}
    for package in ("torch", "transformers", "accelerate", "tokenizers", "numpy"):
        found[package] = importlib.metadata.version(package)
    return found


def hardware() -> dict[str, Any]:
    """What the numbers were made on."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpus": os.cpu_count(), "gpus": gpus, "machine": platform.machine(), "system": platform.system()}


def collected(
    about: Mapping[str, Any],
    entries: Sequence[Contender],
    runs: Sequence[RunSpec],
    records: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The result: what is known of every run, and the statistics over seeds."""
    metric = about["metric"]
    rows: list[dict[str, Any]] = []
    scores: dict[str, dict[int, Any]] = {}
    values: dict[str, dict[int, float]] = {}
    for entry in entries:
        mine = [(spec, records.get(spec.folder)) for spec in runs if spec.model == entry.name]
        row = _row(entry, mine)
        values[entry.name] = {
            run["seed"]: run["metrics"][metric]
            for run in row["runs"]
            if run["status"] == "done" and metric in run["metrics"]
        }
        scores[entry.name] = {spec.seed: record.get("scores") for spec, record in mine if record}
        row["mean"] = mean(list(values[entry.name].values()))
        row["deviation"] = deviation(list(values[entry.name].values()))
        rows.append(row)
    for row in rows:
        row |= _against(about["baseline"], row["name"], values, scores)
    return {**about, "models": rows}


def _row(entry: Contender, mine: Sequence[tuple[RunSpec, Mapping[str, Any] | None]]) -> dict[str, Any]:
    done = [record for _, record in mine if record and record["status"] == "done"]
    first: Mapping[str, Any] = done[0] if done else {}
    config = first.get("config") or {}
    row: dict[str, Any] = {
        "name": entry.name,
        "layer": config.get("layer") or entry.model.get("layer") or _preset_layer(entry),
        "decoder_layer": config.get("decoder_layer") or (entry.model.get("options") or {}).get("decoder_layer"),
        "body": config.get("body"),
        **{name: first.get(name) for name in PER_MODEL},
        "runs": [],
    }
    speeds = [record["steps_per_second"] for record in done if record.get("steps_per_second")]
    row["steps_per_second"] = mean(speeds)
    row["config"] = config
    for spec, record in mine:
        known = dict(record) if record else {"status": "unfinished", "error": None, "steps": None, "seconds": None}
        row["runs"].append(
            {
                "seed": spec.seed,
                "status": known["status"],
                "error": known.get("error"),
                "folder": spec.folder,
                "device": known.get("device"),
                "steps": known.get("steps"),
                "seconds": known.get("seconds"),
                "steps_per_second": known.get("steps_per_second"),
                "curve": known.get("curve") or [],
                "metrics": known.get("metrics") or {},
                "categories": known.get("categories") or {},
            }
        )
    return row


def _preset_layer(entry: Contender) -> str | None:
    from tokenmix.models.presets import PRESETS

    return PRESETS[entry.model["name"]].options.get("layer") if entry.model.get("name") in PRESETS else None


def _against(
    baseline: str, name: str, values: Mapping[str, Mapping[int, float]], scores: Mapping[str, Any]
) -> dict[str, Any]:
    nothing = {"difference": None, "interval": None, "significant": None, "p": None, "over": None}
    common = sorted(set(values[name]) & set(values.get(baseline, {})))
    if name == baseline or not common:
        return nothing
    examples = None
    if len(common) == 1 and scores[name].get(common[0]) and scores[baseline].get(common[0]):
        examples = (scores[name][common[0]], scores[baseline][common[0]])
    found = difference([values[name][s] for s in common], [values[baseline][s] for s in common], examples)
    return {
        "difference": found.value,
        "interval": list(found.interval) if found.interval else None,
        "significant": found.significant,
        "p": found.p,
        "over": f"{found.count} {found.over}" if found.over != "nothing" else None,
    }


def _write_json(path: Path, value: Any) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
    os.replace(aside, path)
