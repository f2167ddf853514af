"""The results of a comparison as tables: models down with all that was measured, categories down with models across."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tokenmix.report import charts
from tokenmix.report.axes import padded, short
from tokenmix.report.page import HEAT

Result = Mapping[str, Any]
Model = Mapping[str, Any]


def metric_of(result: Result) -> tuple[str, bool]:
    """The headline metric, and whether more of it is better."""
    return str(result.get("metric", "metric")), bool(result.get("higher_is_better", True))


def decimals(result: Result) -> int:
    """Digits after the point that the metric is written with, the same in all places."""
    means = [abs(model["mean"]) for model in result["models"] if model.get("mean") is not None]
    return 1 if charts.percent(metric_of(result)[0]) or (means and max(means) >= 10) else 3


def written(value: float | None, digits: int, sign: bool = False) -> str:
    """A number as a table has it.

    >>> written(-1.25, 1, sign=True)
    '−1.2'
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def spread(model: Model, digits: int) -> str:
    """Mean ± deviation."""
    mean = written(model["mean"], digits)
    return f"{mean} ± {written(model['deviation'], digits)}" if model.get("deviation") else mean


def finished(model: Model) -> int:
    """How many of a model's runs are done."""
    return sum(run.get("status") == "done" for run in model["runs"])


def ranked(result: Result) -> list[Model]:
    """Models with a result, the best first."""
    done = [model for model in result["models"] if model.get("mean") is not None]
    return sorted(done, key=lambda model: model["mean"], reverse=metric_of(result)[1])


def leader(result: Result) -> Model | None:
    """The model with the best mean, if it is alone there."""
    order = ranked(result)
    tied = len(order) > 1 and order[0]["mean"] == order[1]["mean"]
    return order[0] if order and not tied else None


def results_table(result: Result) -> str:
    """The main table, the best model first; a click on a heading sorts it otherwise."""
    models, (metric, higher) = result["models"], metric_of(result)
    best_first = "descending" if higher else "ascending"
    columns = [  # title, explanation, order of the first click
        ("Model", "", "ascending"),
        (charts.metric_name(metric), "mean ± standard deviation over seeds", best_first),
        ("Seeds", "each seed's result on a common scale; the line is the mean", ""),
        ("Difference", "to the baseline, with its bootstrap interval", best_first),
        ("Parameters", "", "ascending"),
        ("FLOPs / step", "one training step: forward and backward of a batch", "ascending"),
        ("Steps / s", "training steps per second", "descending"),
        ("Memory", "peak while training", "ascending"),
    ]
    head = ""
    for title, hint, first in columns:
        tip = f' data-tip="{escape(hint)}"' if hint else ""
        if not first:
            head += f'<th scope="col"{tip}>{escape(title)}</th>'
            continue
        sorted_by = f' aria-sort="{best_first}"' if title == columns[1][0] else ""
        button = f'<button type="button" class="sort">{escape(title)}</button>'
        head += f'<th scope="col" data-first="{first}"{sorted_by}{tip}>{button}</th>'
    scores = [score for model in models for _, score in _scores(model, metric)]
    span = padded(scores, 0.05) if scores else (0.0, 1.0)
    order = ranked(result)
    rows = [*order, *(model for model in models if model.get("mean") is None)]
    best = leader(result)
    body = "".join(_row(result, models.index(model), model, span, model is best) for model in rows)
    over = next((str(model["over"]) for model in models if model.get("over")), "seeds")
    sub = (
        f"Click a heading to sort. Differences are to the baseline <b>{escape(str(result.get('baseline', '')))}</b>, "
        f"with a bootstrap interval over {escape(over)}."
    )
    table = f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<p class="sub">{sub}</p><div class="scroll">{table}</div>{_failures(models)}'


def _scores(model: Model, metric: str) -> list[tuple[str, float]]:
    """(seed, result) of the finished runs."""
    found = []
    for run in model["runs"]:
        value = (run.get("metrics") or {}).get(metric) if run.get("status") == "done" else None
        if isinstance(value, (int, float)) and math.isfinite(value):
            found.append((f"seed {run.get('seed')}", float(value)))
    return found


def _row(result: Result, number: int, model: Model, span: tuple[float, float], best: bool) -> str:
    digits, scores = decimals(result), _scores(model, metric_of(result)[0])
    mean, strip = "–", ""
    if model.get("mean") is not None:
        deviation = written(model.get("deviation"), digits)
        mean = written(model["mean"], digits) + (
            f' <span class="dev">± {deviation}</span>' if model.get("deviation") else ""
        )
        if scores:
            seeds, values = zip(*scores)
            strip = charts.seeds_strip(number, values, model["mean"], span, seeds)
    cells = [
        ("metric", model.get("mean"), mean),
        ("", None, strip),
        ("", model.get("difference"), _difference(result, model)),
        *(
            ("", model.get(key), escape(short(model.get(key))))
            for key in ("parameters", "flops_step", "steps_per_second")
        ),
        ("", model.get("memory_bytes"), escape(_memory(model.get("memory_bytes")))),
    ]
    html = f'<th scope="row" data-value="{escape(str(model["name"]))}">{_name(result, number, model, best)}</th>'
    for kind, value, shown in cells:
        stored = "" if value is None else escape(str(value))
        html += f'<td class="{kind}" data-value="{stored}">{shown}</td>'
    return f"<tr>{html}</tr>"


def _name(result: Result, number: int, model: Model, best: bool) -> str:
    """Sign, name, tags, and the layer where it says more than the name."""
    tags, count = "", len(model["runs"])
    if model["name"] == result.get("baseline"):
        tags += ' <span class="tag">baseline</span>'
    if best:
        tags += ' <span class="tag good">best</span>'
    for status, kind, word in (("failed", "tag bad", "failed"), ("unfinished", "tag", "not finished")):
        if some := sum(run.get("status") == status for run in model["runs"]):
            tags += f' <span class="{kind}">{some} of {count} {word}</span>'
    layer = str(model.get("layer") or "")
    if model.get("decoder_layer") not in (None, "", model.get("layer")):
        layer += f"; decoder: {model['decoder_layer']}"
    said = f'<span class="layer"><code>{escape(layer)}</code></span>' if layer and layer != model["name"] else ""
    what = f'<span class="what">{escape(str(model["name"]))}{tags}{said}</span>'
    return f'<div class="model">{charts.swatch(number)}{what}</div>'


def _difference(result: Result, model: Model) -> str:
    if model.get("difference") is None:
        return "–"
    digits = decimals(result)
    html = written(model["difference"], digits, sign=True)
    if model.get("significant") is not None:
        better = (model["difference"] > 0) == metric_of(result)[1]
        kind = ("good" if better else "bad") if model["significant"] else ""
        tip = "" if model.get("p") is None else f' data-tip="p = {model["p"]:.2g}"'
        html += f' <span class="tag {kind}"{tip}>{"" if model["significant"] else "not "}significant</span>'
    if model.get("interval"):
        low, high = (written(edge, digits, sign=True) for edge in model["interval"])
        html += f'<span class="layer">{low} to {high}</span>'
    return html


def _memory(size: float | None) -> str:
    if size is None:
        return "–"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _failures(models: Sequence[Model]) -> str:
    html = ""
    for model in models:
        for run in model["runs"]:
            if run.get("status") == "failed":
                why = escape(str(run.get("error") or "no reason was recorded"))
                title = f"{escape(str(model['name']))}, seed {escape(str(run.get('seed')))}, failed"
                html += f'<div class="note bad"><p><b>{title}</b></p><p class="why">{why}</p></div>'
    return html


def categories_table(result: Result) -> str:
    """Categories down, models across: the mean over seeds, coloured. Empty where no run has categories."""
    metric, higher = metric_of(result)
    models = [model for model in result["models"] if any(run.get("categories") for run in model["runs"])]
    names = list(dict.fromkeys(name for m in models for run in m["runs"] for name in run.get("categories") or {}))
    means = {(name, k): mean for k, m in enumerate(models) for name in names if (mean := _mean(m, name)) is not None}
    if not means:
        return ""
    low, high = min(means.values()), max(means.values())
    digits = 1 if high >= 10 else 3
    if charts.percent(metric):
        low, high = 0.0, 100.0
    head = '<th scope="col" data-first="ascending"><button type="button" class="sort">Category</button></th>'
    for model in models:
        button = f'<button type="button" class="sort">{escape(str(model["name"]))}</button>'
        head += f'<th scope="col" data-first="{"descending" if higher else "ascending"}">{button}</th>'
    rows = ""
    for name in names:
        cells = ""
        for column in range(len(models)):
            value = means.get((name, column))
            if value is None:
                cells += '<td data-value="">–</td>'
                continue
            step = min(HEAT - 1, max(0, round((value - low) / ((high - low) or 1) * (HEAT - 1))))
            cells += f'<td class="q{step}" data-value="{value}">{written(value, digits)}</td>'
        rows += f'<tr><th scope="row" data-value="{escape(name)}">{escape(name)}</th>{cells}</tr>'
    said = f"{charts.metric_name(metric)} by category, mean over seeds."
    table = f'<table class="sortable heat"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<p class="sub">{escape(said[0].upper() + said[1:])}</p><div class="scroll">{table}</div>'


def _mean(model: Model, category: str) -> float | None:
    values = [(run.get("categories") or {}).get(category) for run in model["runs"]]
    kept = [float(value) for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    return sum(kept) / len(kept) if kept else None
