"""The result of a recipe: numbers seed by seed, the paper's beside ours, and which claims hold.

A result is what `recipes/results/*.json` hold: small enough to be committed, without curves and paths of a machine.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmix.compare.comparison import hardware, versions
from tokenmix.compare.statistics import deviation, mean
from tokenmix.recipes.recipe import Recipe, Scale, Stage
from tokenmix.recipes.verdicts import Numbers, Values
from tokenmix.report.charts import scaling
from tokenmix.report.scene import Scene

logger = logging.getLogger(__name__)


def profiled_numbers(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """What a profile counted, and the steps a second of each round."""
    return {
        "parameters": [found["parameters"]["total"]],
        "flops_forward": [found["flops_forward"]["total"]],
        "flops_step": [found["flops_step"]],
        "steps_per_second": list(found["samples"]),
        "memory_bytes": [found["memory_bytes"]] if found["memory_bytes"] else [],
    }


def measured_numbers(row: Mapping[str, Any]) -> dict[str, list[float | None]]:
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


def fill(
    values: dict[str, dict[str, list[float | None]]],
    stage: Stage,
    recipe: Recipe,
    found: Values,
) -> None:
    """Put what a stage found of each row into the columns that the stage fills; "parameters/1e6" is in millions."""
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


def complete(
    values: dict[str, dict[str, list[float | None]]],
    stages: dict[str, Any],
    before: Mapping[str, Any],
    scale: Scale,
    asked: Mapping[str, Any],
) -> None:
    """What a part of a recipe did not run, from an earlier result: stages, rows of a stage, and seeds of a row.

    What was made for another budget, task or model than is ``asked`` now (by stage) is left out, and said.
    """
    kept: dict[str, Any] = {}
    for stage in scale.stages:
        old = before["stages"].get(stage.name)
        goes_on = stage.after is None or stage.after in kept or stage.after not in before["stages"]
        if old is not None and goes_on and _alike(old, stages.get(stage.name), asked[stage.name]):
            kept[stage.name] = old
    left = sorted(before["stages"].keys() - kept.keys())
    columns = {column: stage.name for stage in scale.stages if stage.name in kept for column in stage.columns}
    for row, cells in values_of(before).items():
        for column in columns.keys() & cells.keys():
            name = columns[column]
            if _same_model(kept[name], asked[name], row):
                mine = values.setdefault(row, {})
                mine[column] = _filled(mine.get(column), cells[column])
            else:
                left.append(f"{row} in {name}")
    for name, old in kept.items():
        new = stages.setdefault(name, old)
        if isinstance(new["models"], dict):
            same = {row: found for row, found in old["models"].items() if _same_model(old, asked[name], row)}
            new["models"] = {**same, **new["models"]}
        elif new is not old:
            earlier = {row["name"]: row for row in old["models"] if _same_model(old, asked[name], row["name"])}
            rows = [_with_runs(row, earlier.pop(row["name"], row), new["metric"]) for row in new["models"]]
            new["models"] = [*rows, *earlier.values()]
            others = [made for made in old.get("trained_with", []) if made not in new["trained_with"]]
            new["trained_with"] = [*others, *new["trained_with"]]
    if left:
        logger.warning(
            "of the earlier result, made with other settings, is left out: %s", ", ".join(dict.fromkeys(left))
        )


def measured_runs(
    before: Mapping[str, Any], stage: Stage, scale: Scale, asked: Mapping[str, Any]
) -> set[tuple[str, int]]:
    """(row, seed) of a stage that an earlier result has and that no later stage goes on from."""
    old = before["stages"].get(stage.name)
    if old is None or "asked" not in old or not _alike(old, None, asked):
        return set()
    if any(other.after == stage.name for other in scale.stages):
        return set()
    rows = [row for row in old["models"] if _same_model(old, asked, row["name"])]
    return {(row["name"], run["seed"]) for row in rows for run in row["runs"] if run["status"] == "done"}


def _alike(old: Mapping[str, Any], new: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> bool:
    """Whether an earlier stage was asked the same; results of earlier versions tell their settings alone."""
    if "asked" in old:
        return bool(old["asked"]["stage"] == asked["stage"])
    return new is None or old.get("settings") == new.get("settings")


def _same_model(old: Mapping[str, Any], asked: Mapping[str, Any], row: str) -> bool:
    """Whether a row of an earlier stage has the model that it has now; results of earlier versions do not tell."""
    return "asked" not in old or old["asked"]["models"].get(row) == asked["models"].get(row)


def _filled(new: Sequence[float | None] | None, old: Sequence[float | None]) -> list[float | None]:
    """Numbers seed by seed, an older one where a new one is missing."""
    if not new:
        return list(old)
    return [b if a is None else a for a, b in zip(new, old)] if len(new) == len(old) else list(new)


def _with_runs(row: Mapping[str, Any], earlier: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """A row with the earlier runs of the seeds that it lacks."""
    older = {run["seed"]: run for run in earlier["runs"] if run["status"] == "done"}
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


def shortened(result: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison without its curves and without paths of this machine: small enough to be committed."""
    kept = ("task", "form", "split", "metric", "higher_is_better", "budget", "match", "note")
    data = {name: value for name, value in result["settings"]["data"].items() if name != "folder"}
    rows = []
    for row in result["models"]:
        names = ("seed", "status", "error", "device", "steps", "seconds", "metrics", "categories")
        runs = [{name: run[name] for name in names} for run in row["runs"]]
        rows.append({name: value for name, value in row.items() if name not in ("runs", "config")} | {"runs": runs})
    trained = [_trained_with(Path(run["folder"])) for row in result["models"] for run in row["runs"]]
    return {
        **{name: result[name] for name in kept},
        "settings": result["settings"] | {"data": data},
        "trained_with": [found for n, found in enumerate(trained) if found and found not in trained[:n]],
        "models": rows,
    }


def _trained_with(folder: Path) -> dict[str, str] | None:
    """Versions of the machine that a run was trained on, which need not be this one."""
    file = folder / "environment.json"
    return json.loads(file.read_text(encoding="utf-8"))["versions"] if file.exists() else None


def make_result(
    recipe: Recipe,
    scale: str,
    seeds: int,
    values: Values,
    stages: Mapping[str, Any],
    seconds: float,
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The whole result: the paper's table with ours beside it, the claims, and what each stage was."""
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
        found = {"found": row.layer} if row.searched else {}
        rows.append({"name": row.name, "layer": row.layer, "preset": row.preset, **found, "columns": cells})
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


def judge_claims(recipe: Recipe, values: Values, quick: bool = False) -> list[dict[str, str]]:
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


def read_result(path: Path) -> dict[str, Any]:
    """A result that was written before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("scale", "seeds", "changed", "stages", "rows")} | found
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result of `tokenmix reproduce` ({error}); move it away") from None


def values_of(result: Mapping[str, Any]) -> dict[str, dict[str, list[float | None]]]:
    """Our numbers in a result file, so that claims can be judged again."""
    return {
        row["name"]: {column: cell["values"] for column, cell in row["columns"].items() if cell["values"]}
        for row in result["rows"]
    }


def scaling_figure(
    recipe: Recipe, result: Mapping[str, Any], size: str = "Params (M)", column: str = "Perplexity"
) -> Scene | None:
    """Perplexity over parameters with the power law of each of the recipe's families; None where a model is missing."""

    rows = {row["name"]: row["columns"] for row in result["rows"]}
    families = {
        family: [(rows[n][size]["mean"], rows[n][column]["mean"], rows[n][column]["deviation"] or 0.0) for n in names]
        for family, names in recipe.families.items()
    }
    found = [value for points in families.values() for x, y, _ in points for value in (x, y)]
    if not found or any(value is None or not 0 < value < math.inf for value in found):
        return None
    if any(len({x for x, _, _ in points}) < 2 for points in families.values()):
        return None
    return scaling(families, "parameters (M)", column.lower())
