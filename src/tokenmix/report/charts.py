"""The charts of a comparison: learning curves, metric against cost, scaling laws, the seeds of a model on one line.

Each is a drawing (:class:`Scene`) and, where a page shows more on hover, the numbers behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from math import exp, log
from statistics import linear_regression
from typing import Any

from tokenmix.report.axes import Frame, padded, short
from tokenmix.report.colours import SERIES
from tokenmix.report.scene import DASHES, SHAPES, Line, Mark, Scene, Shape, Text

WIDTH, HEIGHT, SIZE = 500.0, 320.0, 13.0
#: metrics in percent; perplexity, errors and BLEU are what they are
PERCENT = ("accuracy", "exact_match", "f1", "matthews", "pearson", "spearman", "sequence_accuracy", "token_accuracy")


def percent(metric: str) -> bool:
    """Whether a metric is a share in percent."""
    return metric.startswith(PERCENT)


def _range(values: Sequence[float], metric: str, share: float) -> tuple[float, float]:
    """The y axis: the values with a margin, within what the metric can be."""
    low, high = padded(values, share)
    low = max(0.0, low) if min(values) >= 0 else low
    return low, min(101.5, high) if percent(metric) and max(values) <= 100 else high


def metric_name(metric: str) -> str:
    """A metric as a reader knows it, with its unit.

    >>> metric_name("exact_match")
    'exact match (%)'
    """
    words = metric.replace("_", " ").replace("/", " · ")
    return f"{words} (%)" if percent(metric) else words


def style(number: int) -> tuple[str, str, str]:
    """Colour, dash and marker of a series: no two of the first 32 look the same, also without colour."""
    count = len(SERIES)
    return f"series{number % count}", DASHES[(number // count) % len(DASHES)], SHAPES[(number + number // count) % 4]


def swatch(number: int, line: bool = False) -> str:
    """The series' sign for a legend or a table."""
    colour, dash, mark = style(number)
    shapes: list[Shape] = [Line(((0, 6), (26, 6)), colour, 2, dash)] if line else []
    scene = Scene(
        26 if line else 13,
        12 if line else 13,
        [*shapes, Mark(13 if line else 6.5, 6 if line else 6.5, mark, colour, 4.5)],
    )
    return scene.svg(page=True).replace('role="img" aria-label=""', 'aria-hidden="true"')


def values_of(run: Mapping[str, Any], what: str, metric: str) -> list[tuple[float, float]]:
    """(step, value) of a run's curve: `what` is "loss" or "metric"."""
    names = ("loss",) if what == "loss" else ("metric", metric)
    points = []
    for entry in run.get("curve") or []:
        value = next((entry[name] for name in names if isinstance(entry.get(name), (int, float))), None)
        if value is not None and value == value and abs(value) != float("inf"):
            points.append((float(entry["step"]), float(value)))
    return points


def running_mean(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each value as the mean of a fortieth of the curve around it: what a noisy loss says."""
    half = len(points) // 80
    values = [value for _, value in points]
    near = [values[max(0, k - half) : k + half + 1] for k in range(len(points))]
    return [(step, sum(some) / len(some)) for (step, _), some in zip(points, near)]


def curves(
    models: Sequence[Mapping[str, Any]], what: str, metric: str, higher: bool
) -> tuple[Scene, dict[str, Any]] | None:
    """Loss or metric over steps: a thick line for the mean of the seeds, thin ones for each. None without points."""
    drawn: list[tuple[int, str, list[list[tuple[float, float]]], list[tuple[float, float]]]] = []
    for number, model in enumerate(models):
        done = [run for run in model["runs"] if run.get("status") == "done"] or model["runs"]
        seeds = [points for run in done if (points := values_of(run, what, metric))]
        at: dict[float, list[float]] = defaultdict(list)
        for points in seeds:
            for step, value in points:
                at[step].append(value)
        if at:
            mean = [(step, sum(at[step]) / len(at[step])) for step in sorted(at) if len(at[step]) == len(seeds)]
            drawn.append((number, str(model["name"]), seeds, running_mean(mean) if what == "loss" else mean))
    if not drawn:
        return None
    every = [point for _, _, seeds, _ in drawn for points in seeds for point in points]
    steps, values = [step for step, _ in every], [value for _, value in every]
    y = _range(values, "" if what == "loss" else metric, 0.04)
    log = what == "loss" and min(values) > 0 and max(values) / min(values) > 30
    if log:
        y = (min(values) * 0.8, max(values) * 1.2)
    label = "training loss" + (" (log)" if log else "") if what == "loss" else metric_name(metric)
    frame = Frame(44, 30, WIDTH - 54, HEIGHT - 76, (min(0.0, min(steps)), max(steps) or 1.0), y, log_y=log)
    shapes = frame.draw("training step", label, SIZE)
    for number, _, seeds, mean in drawn:
        colour, dash, mark = style(number)
        if len(seeds) > 1 or what == "loss":
            for points in seeds:
                shapes.append(Line(tuple(frame.point(*p) for p in points), colour, 1, dash, 0.3, series=number))
        shapes.append(Line(tuple(frame.point(*p) for p in mean), colour, 2.2, dash, series=number))
        if mean:
            shapes.append(Mark(*frame.point(*mean[-1]), mark, colour, 4, series=number))
    title = f"{label} over training steps of {len(drawn)} models"
    data = {
        "frame": {"left": frame.left, "top": frame.top, "width": frame.width, "height": frame.height, "x": frame.x},
        "curves": [{"series": number, "name": name, "points": mean} for number, name, _, mean in drawn],
        "x": "step",
        "higher": what != "loss" and higher,
    }
    return Scene(WIDTH, HEIGHT, shapes, title), data


def against_cost(models: Sequence[Mapping[str, Any]], cost: str, label: str, metric: str) -> Scene | None:
    """Metric (mean ± deviation over seeds) against a cost, each model labelled. None without two numbers to show."""
    points = [
        (number, str(model["name"]), float(model[cost]), float(model["mean"]), float(model.get("deviation") or 0))
        for number, model in enumerate(models)
        if model.get(cost) and model.get("mean") is not None
    ]
    if not points:
        return None
    costs = [x for _, _, x, _, _ in points]
    log = min(costs) > 0 and max(costs) / min(costs) > 8
    x = (min(costs) / 1.4, max(costs) * 1.4) if log else padded(costs, 0.16, least=max(costs) * 0.08)
    y = _range(
        [edge for _, _, _, m, d in points for edge in (max(0.0, m - d) if m >= 0 else m - d, m + d)], metric, 0.1
    )
    frame = Frame(44, 30, WIDTH - 54, HEIGHT - 76, x, y, log_x=log)
    shapes = frame.draw(label + (" (log)" if log else ""), metric_name(metric), SIZE)
    taken: list[tuple[float, float, float, float]] = []
    for number, name, cost_value, mean, deviation in points:
        colour, _, mark = style(number)
        a, b = frame.point(cost_value, mean)
        if deviation:
            ends = ((a, frame.up(mean - deviation)), (a, frame.up(mean + deviation)))
            shapes.append(Line(ends, colour, 1.5, opacity=0.6, series=number))
            taken.append((a - 3, ends[1][1], a + 3, ends[0][1]))
        spread = f" ± {short(deviation)}" if deviation else ""
        tip = f"{name}\n{metric_name(metric)}: {short(mean)}{spread}\n{label}: {short(cost_value)}"
        shapes.append(Mark(a, b, mark, colour, 6.5, series=number, tip=tip))
        taken.append((a - 7, b - 7, a + 7, b + 7))
    for number, name, cost_value, mean, _ in points:
        a, b = frame.point(cost_value, mean)
        text = name if len(name) <= 26 else name[:25] + "…"
        spot = _spot(a, b, 0.56 * 12 * len(text), frame, taken)
        if spot is not None:
            shapes.append(Text(spot[0], spot[1], text, 12, spot[2], "ink", series=number))
    return Scene(WIDTH, HEIGHT, shapes, f"{metric_name(metric)} against {label} of {len(points)} models")


def scaling(families: Mapping[str, Sequence[tuple[float, float, float]]], size: str, metric: str) -> Scene:
    """A metric over the size of models, both logarithmic: each family's (size, mean, deviation) and its power law.

    >>> scaling({"gMLP": [(59, 5.25, 0), (102, 4.35, 0), (187, 3.79, 0)]}, "parameters (M)", "perplexity").title
    'perplexity over parameters (M): gMLP ~ size^−0.28'
    """
    every = [point for points in families.values() for point in points]
    sizes, values = [x for x, _, _ in every], [edge for _, m, d in every for edge in (m - d if d < m else m, m + d)]
    x, y = (min(sizes) / 1.25, max(sizes) * 1.25), (min(values) / 1.06, max(values) * 1.06)
    frame = Frame(44, 30, WIDTH - 54, HEIGHT - 76, x, y, log_x=True, log_y=True)
    shapes = frame.draw(f"{size} (log)", f"{metric} (log)", SIZE)
    said = []
    for number, (name, points) in enumerate(families.items()):
        colour, dash, mark = style(number)
        slope, start = linear_regression([log(x) for x, _, _ in points], [log(m) for _, m, _ in points])
        ends = (min(x for x, _, _ in points), max(x for x, _, _ in points))
        law = tuple(frame.point(end, exp(start + slope * log(end))) for end in ends)
        shapes.append(Line(law, colour, 1.8, dash, 0.7, series=number))
        for place, mean, deviation in points:
            if 0 < deviation < mean:
                edges = tuple(frame.point(place, edge) for edge in (mean - deviation, mean + deviation))
                shapes.append(Line(edges, colour, 1.5, opacity=0.6, series=number))
            tip = f"{name}\n{metric}: {short(mean)}\n{size}: {short(place)}"
            shapes.append(Mark(*frame.point(place, mean), mark, colour, 5.5, series=number, tip=tip))
        said.append(f"{name} ~ size^{slope:.2f}".replace("-", "−"))
        top = frame.top + 14 + 18 * number
        shapes.append(Mark(frame.left + frame.width - 190, top - 4, mark, colour, 5))
        shapes.append(Text(frame.left + frame.width - 178, top, said[-1], 12, "start", "ink"))
    return Scene(WIDTH, HEIGHT, shapes, f"{metric} over {size}: {', '.join(said)}")


def _spot(
    x: float, y: float, width: float, frame: Frame, taken: list[tuple[float, float, float, float]]
) -> tuple[float, float, str] | None:
    """A free place for a label beside a point; None where there is none (the legend still tells)."""
    for down in (4, -9, 17, -22, 30, -35):
        for anchor, start in (("start", x + 11), ("end", x - 11 - width), ("middle", x - width / 2)):
            if anchor == "middle" and abs(down - 4) < 12:
                continue
            box = (start, y + down - 10, start + width, y + down + 3)
            inside = frame.left <= box[0] and box[2] <= frame.left + frame.width + 8 and box[1] >= frame.top - 12
            inside = inside and box[3] <= frame.top + frame.height
            if inside and not any(box[0] < r and l < box[2] and box[1] < d and u < box[3] for l, u, r, d in taken):
                taken.append(box)
                return {"start": x + 11, "end": x - 11, "middle": x}[anchor], y + down, anchor
    return None


def seeds_strip(
    number: int, values: Sequence[float], mean: float, span: tuple[float, float], names: Sequence[str]
) -> str:
    """Each seed's result as a dot on a common scale, the mean as a line: an SVG for a table's cell."""
    frame = Frame(6, 0, 120, 22, span, (0, 1))
    colour, _, _ = style(number)
    shapes: list[Shape] = [Line(((6, 11), (126, 11)), "line")]
    shapes.append(Line(((frame.across(mean), 3), (frame.across(mean), 19)), colour, 2))
    for value, name in zip(values, names):
        shapes.append(Mark(frame.across(value), 11, "circle", colour, 3.6, tip=f"{name}: {short(value)}"))
    title = ", ".join(f"{name}: {short(value)}" for value, name in zip(values, names))
    return Scene(132, 22, shapes, title).svg(page=True).replace("<svg ", '<svg class="seeds" ', 1)


def legend(models: Sequence[Mapping[str, Any]]) -> str:
    """Buttons that hide and show a model in the charts of a section."""
    buttons = ""
    for number, model in enumerate(models):
        inside = swatch(number, line=True) + escape(str(model["name"]))
        buttons += f'<button type="button" data-series="{number}" aria-pressed="true">{inside}</button>'
    return f'<div class="legend" role="group" aria-label="Models shown">{buttons}</div>'
