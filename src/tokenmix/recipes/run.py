"""Carries out a recipe at a scale, puts our numbers beside the paper's, and says which claims hold.

>>> result = reproduce(get_recipe("synthesizer-table-7"), "bench", out="runs/reproduce")
>>> [(claim["text"], claim["verdict"]) for claim in result["claims"]]
[('FR is about as good as Linformer on news', 'holds'), …]
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tokenmix.compare.comparison import compare, hardware, versions
from tokenmix.compare.live import Live
from tokenmix.compare.plan import Contender, Judging, slug
from tokenmix.compare.statistics import deviation, mean
from tokenmix.data.shard_writer import write_json
from tokenmix.models import TokenmixConfig, preset_config
from tokenmix.naming import unknown
from tokenmix.recipes.recipe import Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import Numbers
from tokenmix.training.config import merge
from tokenmix.training.faults import FolderLock

logger = logging.getLogger(__name__)


# -------------------------------------------------------------------------------------------------- models of a recipe


def contender_of(row: Row, scale: Scale, stage: Stage, name: str) -> Contender:
    """A row's model at a scale: its preset, or its layer at the scale's sizes."""
    if name == "paper" or stage.original:
        preset = stage.presets.get(row.name, row.preset)
        return Contender(row.name, {"name": preset, "options": dict(row.changes)})
    encoder, semicolon, decoder = str(row.layer).partition(";")
    if stage.feed_forward is not None:
        encoder, decoder = (
            " | ".join([*part.split("|")[:-1], stage.feed_forward]) if part else "" for part in (encoder, decoder)
        )
    options: dict[str, Any] = {**scale.sizes, **row.options}
    sizes = dict(options)
    for option, factor in row.multiples.items():
        base = sizes.get(option, sizes.get("layers") if option == "decoder_layers" else None)
        if base is None:
            raise ValueError(f"{row.name}: the scale has no {option} to multiply")
        unit = 1
        if option == "d_model":
            unit = 8 * max(1, options.get("heads", 1)) if base >= 128 else max(2, options.get("heads", 1))
        elif option == "d_ff" and base >= 128:
            unit = 8  # what matrix units like
        options[option] = max(unit, round(base * factor / unit) * unit)
    if semicolon:
        options["decoder_layer"] = decoder.strip()
    body = stage.body or scale.body
    return Contender(row.name, {"layer": encoder.strip(), "options": options, **({"body": body} if body else {})})


def contenders_of(
    recipe: Recipe,
    scale: str,
    stage: Stage,
    only: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> list[Contender]:
    """The models of a stage, the baseline first; with ``only``, those rows and the baseline.

    `model.options` of ``settings`` stand in place of the scale's sizes; what is a row's own stays.
    """
    chosen, given = recipe.scale(scale), ((settings or {}).get("model") or {}).get("options") or {}
    chosen = replace(chosen, sizes={option: given.get(option, size) for option, size in chosen.sizes.items()})
    wanted = {recipe.row(name).name for name in (*only, recipe.baseline)} if only else None
    rows = [row for row in recipe.rows if row.runs("paper" if stage.original else scale)]
    rows = [row for row in rows if wanted is None or row.name in wanted]
    rows.sort(key=lambda row: row.name != recipe.baseline)
    return [contender_of(row, chosen, stage, scale) for row in rows]


def stages_of(recipe: Recipe, scale: str, parts: Sequence[str] = ()) -> list[Stage]:
    """The stages of a scale; with ``parts``, those alone."""
    stages = {stage.name: stage for stage in recipe.scale(scale).stages}
    for name in parts:
        if name not in stages:
            raise unknown(f"part of {recipe.name}", name, stages)
        if (before := stages[name].after) and before not in parts:
            raise ValueError(f"{name} goes on from {before}: name both, --part {before} --part {name}")
    return [stage for stage in stages.values() if not parts or stage.name in parts]


def config_of(entry: Contender, body: str | None = None) -> TokenmixConfig:
    """A contender's configuration, its vocabulary that of its preset (or a small one)."""
    model = entry.model
    if model.get("name"):
        return preset_config(model["name"], **model.get("options", {}))
    options = dict(model.get("options", {}))
    return TokenmixConfig(**{"body": model.get("body") or body or "seq2seq", "layer": model["layer"], **options})


# ------------------------------------------------------------------------------------------------------------- running


def reproduce(
    recipe: Recipe,
    scale: str = "bench",
    *,
    out: str | Path = "runs/reproduce",
    seeds: int | None = None,
    engine: str = "local",
    jobs: int = 1,
    data: str | None = None,
    settings: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    parts: Sequence[str] = (),
    live: Live | None = None,
    report: bool = True,
    collect: bool = False,
) -> dict[str, Any]:
    """Run every stage; stages of recipes that share an ``out`` reuse each other's runs.

    ``settings`` lie above the recipe's own (`{"budget": {"steps": 100}}`); the result says so. ``only`` names the rows
    to run beside the baseline, ``parts`` the stages; claims about others stay "not run yet", and a later call without
    them goes on from there. ``collect``: train nothing, put together what is finished in ``out``.
    """
    chosen = recipe.scale(scale)
    count = seeds or chosen.seeds
    folder = Path(out)
    started = time.time()
    values: dict[str, dict[str, list[float | None]]] = {}
    stages: dict[str, Any] = {}
    weights: dict[str, dict[tuple[str, int], str]] = {}
    for stage in stages_of(recipe, scale, parts):
        entries = contenders_of(recipe, scale, stage, only, settings)
        place = folder / recipe.name / scale / stage.name
        if stage.profile:
            found = _profile(entries, stage, chosen, place, collect)
            stages[stage.name] = found
            _fill(values, stage, recipe, {name: _profiled(row) for name, row in found["models"].items()})
            continue
        above = merge(stage.settings, {"data": {"folder": data}} if data else {}, _but_sizes(settings, chosen))
        above = _prepared(above, folder, data, chosen.body or stage.body)
        sizes = (
            {"model": {"body": stage.body or chosen.body}} if scale != "paper" and (stage.body or chosen.body) else {}
        )
        result = compare(
            entries,
            merge(sizes, above),
            seeds=count,
            out=place,
            rule=chosen.match if not stage.after else "none",
            judging=Judging(stage.split, stage.examples, stage.beams),
            baseline=recipe.baseline,
            engine=engine,
            jobs=jobs,
            weights=weights.get(stage.after) if stage.after else None,
            live=live,
            command=recipe.command(scale, settings, count),
            report=report,
            pool=folder,
            collect=collect,
        )
        weights[stage.name] = {
            (row["name"], run["seed"]): run["folder"] for row in result["models"] for run in row["runs"]
        }
        stages[stage.name] = _short(result)
        _fill(values, stage, recipe, {row["name"]: _measured(row) for row in result["models"]})
    if collect and not values:
        raise ValueError(
            f"no finished run of {recipe.name} at {scale} in {folder}; give --out as it was when they were made"
        )
    place = folder / recipe.name / scale
    place.mkdir(parents=True, exist_ok=True)
    if (only or parts) and (place / "result.json").exists():
        before = json.loads((place / "result.json").read_text(encoding="utf-8"))
        if before["seeds"] == count and before["changed"] == dict(settings or {}):
            _complete(values, stages, before, chosen)
    made = _result(recipe, scale, count, values, stages, time.time() - started, settings)
    (place / "result.json").write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")
    drawn = scaling_figure(recipe, made)
    if drawn is not None:
        (place / "scaling.svg").write_text(drawn.svg(), encoding="utf-8")
    return made


def scaling_figure(
    recipe: Recipe, result: Mapping[str, Any], size: str = "Params (M)", column: str = "Perplexity"
) -> Any:
    """Perplexity over parameters with the power law of each of the recipe's families; None where a model is missing."""
    from tokenmix.report.charts import scaling

    rows = {row["name"]: row["columns"] for row in result["rows"]}
    families = {
        family: [(rows[n][size]["mean"], rows[n][column]["mean"], rows[n][column]["deviation"] or 0.0) for n in names]
        for family, names in recipe.families.items()
    }
    if not families or any(None in point for points in families.values() for point in points):
        return None
    return scaling(families, "parameters (M)", column.lower())


def _but_sizes(settings: Mapping[str, Any] | None, scale: Scale) -> dict[str, Any]:
    """The settings without the models' sizes, which the contenders have, and those that go on from weights from them."""
    left = merge({}, settings or {})
    if options := (left.get("model") or {}).get("options"):
        left["model"] = {**left["model"], "options": {k: v for k, v in options.items() if k not in scale.sizes}}
    return left


def _prepared(settings: dict[str, Any], folder: Path, data: str | None, body: str | None) -> dict[str, Any]:
    """`text:NAME` as shards: the text is tokenized once, for all recipes that share the folder and the body's style."""
    task = settings.get("data", {}).get("task", "")
    if not task.startswith("text:"):
        return settings
    from tokenmix.data.shard_writer import prepare_shards
    from tokenmix.data.sources import Files
    from tokenmix.data.task import get_task
    from tokenmix.data.tokenizers import load_tokenizer, train_tokenizer

    name, size = task.removeprefix("text:"), settings["data"].get("vocab_size", 16_000)
    style: Any = "bert" if body == "encoder" else "t5"
    place = folder / "text" / f"{name}-{style}-{size}"
    source = get_task(name).source("train", data)
    if not isinstance(source, Files):
        raise ValueError(f"{name} is prepared from local files; put them into the data folder (--data, $TOKENMIX_DATA)")
    with FolderLock(place, waits=True):  # another command may be at it
        if not (place / "tokenizer" / "tokenizer.json").exists():
            logger.info("training a tokenizer of %s tokens on %s → %s", f"{size:,}", name, place / "tokenizer")
            texts = (example.target for _, example in zip(range(20_000), get_task(name).stream("train", data)))
            made = train_tokenizer(texts, kind="unigram", vocab_size=size, style=style)
            made.save_pretrained(place / "tokenizer")
        if not (place / "shards" / "manifest.json").exists():
            logger.info("preparing %s → %s", name, place / "shards")
            prepare_shards(_files(source, data), load_tokenizer(place / "tokenizer"), place / "shards")
            load_tokenizer(place / "tokenizer").save_pretrained(place / "shards" / "tokenizer")
    return merge(settings, {"data": {"task": f"shards:{place / 'shards'}", "vocab_size": 8000}})


def _files(source: Any, data: str | None) -> list[Path]:
    from tokenmix.data.readers import find_file
    from tokenmix.data.sources import data_folder

    folder = (data_folder(data) or Path()) / source.folder
    found = find_file(folder, source.splits["train"])
    if found is None:
        raise FileNotFoundError(f"no {source.splits['train']} (plain, .gz or .xz) in {folder}")
    return [found]


def _profile(
    entries: Sequence[Contender], stage: Stage, scale: Scale, place: Path, collect: bool = False
) -> dict[str, Any]:
    """Every model counted and timed; what an earlier call into the same folder measured, on a machine with the same
    hardware and versions, is kept. With ``collect`` all that is there is, and nothing is measured."""
    from tokenmix.compare.profile import profile
    from tokenmix.devices import chosen_device

    settings = dict(stage.settings)
    if stage.original and chosen_device("auto").type == "cpu":
        logger.info("no GPU here: models of the papers' own sizes are counted, not timed")
        settings["steps"] = 0
    place.mkdir(parents=True, exist_ok=True)
    models = {}
    for entry in entries:
        config = _fitting(config_of(entry, scale.body), settings)
        asked = {
            "model": config.to_dict(), "settings": settings, "hardware": hardware(), "versions": versions(),
            "threads": torch.get_num_threads(),
        }  # fmt: skip
        asked = json.loads(json.dumps(asked, default=str))
        file = place / f"{slug(entry.name)}.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if collect and not known:
            continue
        if known.get("asked") != asked and not collect:
            known = {"asked": asked, "found": profile(config, **settings)}
            write_json(file, known)
        models[entry.name] = known["found"]
    return {"profile": settings, "models": models}


def _fitting(config: TokenmixConfig, settings: Mapping[str, Any]) -> TokenmixConfig:
    from tokenmix.models.create import plain

    longest = max(settings.get("length") or 1, settings.get("target_length") or 1)
    if config.body == "vision" or longest <= config.max_length:
        return config
    return TokenmixConfig(**{**plain(config), "max_length": longest})


# ------------------------------------------------------------------------------------------------------------- numbers


def _profiled(found: Mapping[str, Any]) -> dict[str, list[float]]:
    return {
        "parameters": [found["parameters"]["total"]],
        "flops_forward": [found["flops_forward"]["total"]],
        "flops_step": [found["flops_step"]],
        "steps_per_second": list(found["samples"]),
        "memory_bytes": [found["memory_bytes"]] if found["memory_bytes"] else [],
    }


def _measured(row: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Metrics seed by seed, None where one is missing, so that rows can be paired; and what all seeds share."""
    done = [run for run in row["runs"] if run["status"] == "done"]
    names = dict.fromkeys(name for run in done for name in run["metrics"])
    found: dict[str, list[float | None]] = {
        name: [run["metrics"].get(name) if run["status"] == "done" else None for run in row["runs"]] for name in names
    }
    for name in ("parameters", "flops_forward", "flops_step", "memory_bytes"):
        found[name] = [row[name]] if row.get(name) else []
    found["steps_per_second"] = [run["steps_per_second"] for run in done if run.get("steps_per_second")]
    return found


def _fill(
    values: dict[str, dict[str, list[float | None]]],
    stage: Stage,
    recipe: Recipe,
    found: Mapping[str, Mapping[str, Sequence[float | None]]],
) -> None:
    for column, source in stage.columns.items():
        if column not in recipe.columns:
            continue
        name, scaled, unit = source.rpartition("/")
        if scaled and _is_number(unit):
            factor = float(unit)
        else:
            name, factor = source, 1.0
        for row, numbers in found.items():
            if numbers.get(name):
                scaled_numbers = [None if number is None else number / factor for number in numbers[name]]
                values.setdefault(row, {})[column] = scaled_numbers


def _complete(
    values: dict[str, dict[str, list[float | None]]], stages: dict[str, Any], before: Mapping[str, Any], scale: Scale
) -> None:
    """What a part of a recipe did not run, from an earlier result: stages, rows of a stage, and seeds of a row.

    A stage whose settings have changed since is not mixed with what was run before.
    """
    kept = {
        name
        for name, old in before["stages"].items()
        if name not in stages or stages[name].get("settings") == old.get("settings")
    }
    columns = {column for stage in scale.stages if stage.name in kept for column in stage.columns}
    for row, cells in values_of(before).items():
        for column in columns & cells.keys():
            mine = values.setdefault(row, {})
            mine[column] = _filled(mine.get(column), cells[column])
    for name in kept:
        old = before["stages"][name]
        new = stages.setdefault(name, old)
        if isinstance(new["models"], dict):
            new["models"] = {**old["models"], **new["models"]}
        else:
            earlier = {row["name"]: row for row in old["models"]}
            rows = [_with_runs(row, earlier.pop(row["name"], row), new["metric"]) for row in new["models"]]
            new["models"] = [*rows, *earlier.values()]


def _filled(new: Sequence[float | None] | None, old: Sequence[float | None]) -> list[float | None]:
    """Numbers seed by seed, an older one where a new one is missing."""
    if not new:
        return list(old)
    return [b if a is None else a for a, b in zip(new, old)] if len(new) == len(old) else list(new)


def _with_runs(row: Mapping[str, Any], earlier: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """A row with the earlier runs of the seeds that it lacks."""
    older = {run["seed"]: run for run in earlier["runs"]}
    runs = [run if run["status"] == "done" else older.get(run["seed"], run) for run in row["runs"]]
    if runs == row["runs"]:
        return dict(row)
    if all(run["status"] != "done" for run in row["runs"]):
        return dict(earlier)
    done = [run["metrics"][metric] for run in runs if metric in run["metrics"]]
    compared = dict.fromkeys(("difference", "interval", "significant", "p", "over"))  # of the new runs alone
    return {**row, **compared, "runs": runs, "mean": mean(done), "deviation": deviation(done)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison without its curves and without paths of this machine: small enough to be committed."""
    kept = ("task", "form", "split", "metric", "higher_is_better", "budget", "match", "note")
    data = {name: value for name, value in result["settings"]["data"].items() if name != "folder"}
    rows = []
    for row in result["models"]:
        names = ("seed", "status", "error", "device", "steps", "seconds", "metrics", "categories")
        runs = [{name: run[name] for name in names} for run in row["runs"]]
        rows.append({name: value for name, value in row.items() if name not in ("runs", "config")} | {"runs": runs})
    return {**{name: result[name] for name in kept}, "settings": result["settings"] | {"data": data}, "models": rows}


def _result(
    recipe: Recipe,
    scale: str,
    seeds: int,
    values: Mapping[str, Mapping[str, Sequence[float | None]]],
    stages: Mapping[str, Any],
    seconds: float,
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    rows = []
    for row in recipe.rows:
        mine = values.get(row.name, {})
        cells = {}
        for column in recipe.columns:
            numbers = list(mine.get(column, []))
            known = [number for number in numbers if number is not None]
            cells[column] = {
                "paper": row.printed.get(column),
                "values": numbers,
                "mean": mean(known),
                "deviation": deviation(known),
            }
        rows.append({"name": row.name, "layer": row.layer, "preset": row.preset, "columns": cells})
    return {
        "recipe": recipe.name,
        "place": recipe.place,
        "title": recipe.title,
        "scale": scale,
        "note": recipe.scale(scale).note,
        "changed": dict(settings or {}),
        "seeds": seeds,
        "command": recipe.command(scale, settings, seeds),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": seconds,
        "versions": versions(),
        "hardware": hardware(),
        "devices": _devices(stages),
        "columns": list(recipe.columns),
        "baseline": recipe.baseline,
        "lower": list(recipe.lower),
        "rows": rows,
        "claims": judge_claims(recipe, values, scale == "tiny"),
        "stages": dict(stages),
    }


def _devices(stages: Mapping[str, Any]) -> list[str]:
    """Where the numbers come from: runs may have been brought here from another machine."""
    found = set()
    for stage in stages.values():
        if "profile" in stage:
            found |= {row["device"] for row in stage["models"].values()}
        else:
            found |= {run["device"] for row in stage["models"] for run in row["runs"]}
    return sorted(found - {None})


def judge_claims(
    recipe: Recipe, values: Mapping[str, Mapping[str, Sequence[float | None]]], quick: bool = False
) -> list[dict[str, str]]:
    """Every claim of a recipe against our numbers."""
    numbers = Numbers(values, recipe.lower, quick)
    found = []
    for claim in recipe.claims:
        verdict = claim.check(numbers)
        found.append(
            {
                "text": claim.text,
                "paper": claim.printed,
                "ours": verdict.ours,
                "verdict": verdict.verdict,
                "reason": verdict.reason,
            }
        )
    return found


def values_of(result: Mapping[str, Any]) -> dict[str, dict[str, list[float | None]]]:
    """Our numbers in a result file, so that claims can be judged again."""
    return {
        row["name"]: {column: cell["values"] for column, cell in row["columns"].items() if cell["values"]}
        for row in result["rows"]
    }
