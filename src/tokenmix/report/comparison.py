"""`report.html` of a comparison: the answer, the table, the charts, the matrices, and how to run it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tokenmix.report import charts
from tokenmix.report.axes import short
from tokenmix.report.mixing import mixing_section
from tokenmix.report.page import page, pairs, plain
from tokenmix.report.results import (
    Result,
    categories_table,
    decimals,
    finished,
    leader,
    metric_of,
    ranked,
    results_table,
    spread,
    written,
)
from tokenmix.report.scene import Scene

COMMAND_MISSING = "the command was not recorded"


def write_report(folder: str | Path, *, matrices: bool = True) -> Path:
    """Write `report.html` for `folder/comparison.json`, and its charts as SVG files in `folder/figures/`.

    The page stands on its own: it opens from disk, without network. With `matrices` the trained models are opened and
    shown one example; a run that cannot be opened is left out with a word on why.

    >>> write_report("runs/compare")
    PosixPath('runs/compare/report.html')
    """
    folder = Path(folder)
    source = folder / "comparison.json"
    try:
        result = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no comparison in {folder}: expected {source}, which `tokenmix compare` writes"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{source} is not JSON ({error}); run `tokenmix compare` again, finished runs are reused"
        ) from None
    if not isinstance(result, dict) or not isinstance(result.get("models"), list):
        raise ValueError(f"{source} is not a comparison: it has no list of models")
    data: dict[str, Any] = {"charts": {}, "matrices": {}, "explorers": {}}
    files = folder / "figures"
    sections = [
        ("results", "Results", results_table(result)),
        ("learning", "Learning curves", _learning(result, data, files)),
        ("cost", "Metric against cost", _cost(result, files)),
        ("categories", "Per category", categories_table(result)),
        ("mixing", "What the models mix", mixing_section(result, folder, data, files) if matrices else ""),
        ("again", "Run it again", _again(result)),
    ]
    kept = [section for section in sections if section[2]]
    contents = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in kept)
    body = (
        f'<header class="top">{_head(result)}<nav class="contents" aria-label="Contents">{contents}</nav></header>'
        + '<main id="content">'
        + "".join(f'<section id="{key}"><h2>{title}</h2>{html}</section>' for key, title, html in kept)
        + f"</main><footer>{_foot(result)}</footer>"
    )
    out = folder / "report.html"
    out.write_text(
        page(f"{result.get('task', 'comparison')}: {len(result['models'])} models compared", body, data), "utf-8"
    )
    return out


# ------------------------------------------------------------------------------------------------------------ words


def _head(result: Result) -> str:
    """The answer in a line, then in two sentences, then what it was asked with."""
    task, (metric, higher) = str(result.get("task", "")), metric_of(result)
    order = ranked(result)
    seeds = max((len(model["runs"]) for model in result["models"]), default=0)
    waiting = sum(run.get("status") == "unfinished" for model in result["models"] for run in model["runs"])
    if order and leader(result) is None:
        title = f"No model leads on {task}"
        lead = f"The best of them are equal, at {spread(order[0], decimals(result))} {charts.metric_name(metric)}."
    elif order:
        # one seed does not say how much runs of the same model differ
        sure = order[0].get("significant") and finished(order[0]) > 1 and not waiting
        title, lead = f"{order[0]['name']} {'is best' if sure else 'leads'} on {task}", _verdict(result, order)
    else:
        title, lead = f"{task}: no run has finished", "The table below says how far they are."
    if order and waiting:
        lead += f" So far: {waiting} of {seeds * len(result['models'])} runs have not finished."
    facts = {
        "Task": f"{task} ({_judged(result)})" if result.get("split") else task,
        "Metric": charts.metric_name(metric) + ("" if higher else ", lower is better"),
        "Budget": _budget(result.get("budget") or {}),
        "Sizes matched by": (result.get("match") or {}).get("rule") or "nothing",
        "Models × seeds": f"{len(result['models'])} × {seeds}",
        "Hardware": _hardware(result.get("hardware")),
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{escape(plain(value))}</dd></div>" for key, value in facts.items())
    note = f'<div class="note"><p>{escape(str(result["note"]))}</p></div>' if result.get("note") else ""
    return (
        f'<p class="eyebrow">tokenmix compare</p><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{note}'
        f'<dl class="facts">{listed}</dl>'
    )


def _judged(result: Result) -> str:
    """The split, and how much of it."""
    return str(result["split"]) + (f", first {result['examples']:,} examples" if result.get("examples") else "")


def _verdict(result: Result, order: Sequence[Mapping[str, Any]]) -> str:
    """What was found and how sure that is."""
    best, digits, metric = order[0], decimals(result), metric_of(result)[0]
    seeds = finished(best)
    percent = charts.metric_name(metric).endswith("(%)")
    words = ("% " if percent else " ") + charts.metric_name(metric).removesuffix(" (%)")
    said = f"It reaches {spread(best, digits)}{words}" + (f" over {seeds} seeds" if seeds > 1 else " with one seed")
    baseline = next((model for model in order if model["name"] == result.get("baseline")), None)
    if baseline is best:
        behind, count = sum(bool(model.get("significant")) for model in order[1:]), len(order) - 1
        others = f"{behind or 'none'} of the {count} others {'are' if behind > 1 else 'is'} significantly worse"
        if count == 1:
            others = f"the other is {'' if behind else 'not '}significantly worse"
        return f"{said}. It is the baseline; {others}." if count else f"{said}."
    if baseline is None or best.get("difference") is None:
        return f"{said}."
    gap = written(best["difference"], digits, sign=True)
    said += f": {gap} against the baseline {baseline['name']} ({spread(baseline, digits)})."
    if best.get("interval"):
        low, high = (written(edge, digits, sign=True) for edge in best["interval"])
        end = "so the difference is significant." if best.get("significant") else "so the two cannot be told apart."
        over = f" over {best['over']}" if best.get("over") else ""
        alone = "" if seeds > 1 else " One seed leaves open how much runs of the same model differ."
        return f"{said} The bootstrap interval of the difference{over} goes from {low} to {high}, {end}{alone}"
    return f"{said} Nothing says how sure that is: give more seeds."


def _budget(budget: Mapping[str, Any]) -> str:
    parts = []
    for name, value in budget.items():
        if value:
            shown = f"{value:,}" if isinstance(value, int) and value < 1e7 else plain(value)
            parts.append(f"batches of {shown}" if name == "batch_size" else f"{shown} {name.replace('_', ' ')}")
    return ", ".join(parts)


def _hardware(hardware: Any) -> str:
    if not isinstance(hardware, Mapping):
        return plain(hardware)
    gpus = hardware.get("gpus") or []
    return (
        ", ".join(map(str, gpus)) if gpus else f"{hardware.get('cpus', '?')} CPU cores, {hardware.get('machine', '')}"
    )


# ----------------------------------------------------------------------------------------------------------- charts


def _chart(
    key: str, scene: Scene, files: Path, data: dict[str, Any] | None = None, hover: dict[str, Any] | None = None
) -> str:
    """A chart on the page, and as a file of its own."""
    files.mkdir(parents=True, exist_ok=True)
    (files / f"{key}.svg").write_text(scene.svg(), encoding="utf-8")
    if data is not None and hover is not None:
        data["charts"][key] = hover
    said = scene.title[0].upper() + scene.title[1:]
    link = f'<figcaption>{escape(said)}. <a href="figures/{key}.svg">SVG</a></figcaption>'
    return f'<figure class="chart" data-chart="{key}">{scene.svg(page=True)}{link}</figure>'


def _learning(result: Result, data: dict[str, Any], files: Path) -> str:
    models, metric = result["models"], str(result.get("metric", "metric"))
    html = ""
    for what in ("metric", "loss"):
        found = charts.curves(models, what, metric, bool(result.get("higher_is_better", True)))
        if found is not None:
            html += _chart(f"learning-{what}", found[0], files, data, found[1])
    if not html:
        return ""
    sub = "Thick lines are the mean over seeds (of the loss a running mean), thin lines what was measured. "
    sub += "Point at a step to read the values; a model's button hides it."
    return f'<p class="sub">{sub}</p>{charts.legend(models)}<div class="charts">{html}</div>'


def _cost(result: Result, files: Path) -> str:
    metric = str(result.get("metric", "metric"))
    html = ""
    for key, label in (("parameters", "parameters"), ("flops_step", "FLOPs per training step")):
        scene = charts.against_cost(result["models"], key, label, metric)
        if scene is not None:
            html += _chart(f"cost-{key.replace('_', '-')}", scene, files)
    if not html:
        return ""
    bars = "Bars are one standard deviation over seeds. " if any(m.get("deviation") for m in result["models"]) else ""
    better = "up" if metric_of(result)[1] else "down"
    return f'<p class="sub">{bars}Better and cheaper is {better} and to the left.</p><div class="charts">{html}</div>'


# ------------------------------------------------------------------------------------------------------------ again


def _again(result: Result) -> str:
    command = escape(str(result.get("command") or COMMAND_MISSING))
    html = (
        '<p class="sub">The same command in the same folder reuses finished runs; elsewhere it repeats them.</p>'
        f'<div class="command"><button type="button" data-copy>Copy</button><pre class="wrap">{command}</pre></div>'
    )
    for model in result["models"]:
        runs = "".join(
            f"<dt>seed {escape(str(run.get('seed')))}</dt><dd>{escape(str(run.get('status')))}, "
            f"{escape(short(run.get('steps')))} steps in {escape(_seconds(run.get('seconds')))}: "
            f"<code>{escape(str(run.get('folder')))}</code></dd>"
            for run in model["runs"]
        )
        config = json.dumps(model.get("config") or {}, indent=2, ensure_ascii=False)
        html += (
            f"<details><summary>{escape(str(model['name']))}</summary>"
            f'<dl class="pairs">{runs}</dl><pre>{escape(config)}</pre></details>'
        )
    for title, key in (
        ("Budget", "budget"),
        ("Match", "match"),
        ("Settings", "settings"),
        ("Versions", "versions"),
        ("Hardware", "hardware"),
    ):
        value = result.get(key)
        if value:
            shown = pairs(value) if isinstance(value, Mapping) else f"<p>{escape(plain(value))}</p>"
            html += f"<details><summary>{title}</summary>{shown}</details>"
    return html


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _foot(result: Result) -> str:
    versions = result.get("versions") or {}
    made = " ".join(f"{name} {versions[name]}" for name in ("tokenmix", "torch", "transformers") if name in versions)
    return f"<p>{escape(str(result.get('created', '')))} · {escape(made)} · this page makes no network request.</p>"
