"""The table of a comparison: on the terminal, as CSV, as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

HEADINGS = (
    "model",
    "layer",
    "parameters",
    "FLOPs/example",
    "steps/s",
    "memory",
    "metric",
    "difference",
    "95% interval",
    "significant",
)


def human(value: float | None, unit: str = "") -> str:
    """A large number in few letters.

    >>> human(247_577_856), human(1.2e9, "B"), human(None)
    ('247.6M', '1.2GB', '–')
    """
    if value is None:
        return "–"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}{letter}{unit}"
    return f"{value:.0f}{unit}"


def layer_of(row: Mapping[str, Any]) -> str:
    """The layer, with the decoder's where it is another.

    >>> layer_of({"layer": "gmlp", "decoder_layer": "dot | geglu"})
    'gmlp ; dot | geglu'
    """
    decoder = row.get("decoder_layer")
    return str(row["layer"]) if decoder in (None, row["layer"]) else f"{row['layer']} ; {decoder}"


def metric_of(row: Mapping[str, Any]) -> str:
    """Mean ± deviation, and what is missing."""
    failed = sum(run["status"] == "failed" for run in row["runs"])
    unfinished = sum(run["status"] == "unfinished" for run in row["runs"])
    parts = []
    if row["mean"] is not None:
        spread = f" ± {row['deviation']:.2f}" if row["deviation"] is not None else ""
        parts.append(f"{row['mean']:.2f}{spread}")
    if failed:
        parts.append(f"{failed} failed")
    if unfinished:
        parts.append(f"{unfinished} to come")
    return ", ".join(parts)


def verdict_of(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Better, worse, or nothing to be said.

    >>> verdict_of({"significant": True, "difference": 2.0}, {"higher_is_better": True})
    'better'
    """
    if row["significant"] is None:
        return ""
    if not row["significant"]:
        return "no"
    return "better" if (row["difference"] > 0) == result["higher_is_better"] else "worse"


def cells(row: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """A row of the table as text."""
    interval = row["interval"]
    base = row["name"] == result["baseline"]
    speed = row["steps_per_second"]
    return [
        row["name"],
        layer_of(row),
        human(row["parameters"]),
        human(row["flops_forward"]),
        f"{speed:.2f}" if speed else "–",
        human(row["memory_bytes"], "B"),
        metric_of(row),
        "baseline" if base else f"{row['difference']:+.2f}" if row["difference"] is not None else "–",
        f"{interval[0]:+.2f} … {interval[1]:+.2f}" if interval else "",
        verdict_of(row, result),
    ]


def headings(result: Mapping[str, Any]) -> list[str]:
    """The table's columns, the metric by its name."""
    arrow = "↑" if result["higher_is_better"] else "↓"
    return [f"{result['metric']} {arrow}" if name == "metric" else name for name in HEADINGS]


def caption(result: Mapping[str, Any]) -> str:
    """What a number of the table is a number of."""
    budget = ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in result["budget"].items())
    over = next((row["over"] for row in result["models"] if row.get("over")), None)
    lines = [f"{result['task']}, split {result['split']}; {budget}; sizes: {result['match']['meaning']}"]
    for name, found in result["match"]["achieved"].items():
        options = ", ".join(f"{key}={value}" for key, value in found["options"].items()) or "nothing changed"
        lines.append(f"{name}: {options} → {found['ratio']:.3f} of the baseline's {result['match']['rule']}")
    if over:
        lines.append(f"interval: paired bootstrap over {over}; significant: the interval excludes 0 and p < 0.05")
    if result.get("note"):
        lines.append(f"data: {result['note']}")
    return "\n".join(lines)


def failures(result: Mapping[str, Any]) -> list[str]:
    """One line for each failed run."""
    return [
        f"{row['name']}, seed {run['seed']}: {run['error']}"
        for row in result["models"]
        for run in row["runs"]
        if run["status"] == "failed"
    ]


def rich_table(result: Mapping[str, Any]) -> Table:
    """For the terminal."""
    table = Table(caption=Text(caption(result)), caption_justify="left")
    for number, name in enumerate(headings(result)):
        table.add_column(Text(name), justify="left" if number < 2 else "right", overflow="fold")
    for row in result["models"]:
        failed = any(run["status"] == "failed" for run in row["runs"])
        table.add_row(*map(Text, cells(row, result)), style="red" if failed and row["mean"] is None else None)
    return table


def markdown(result: Mapping[str, Any]) -> str:
    """For a README or a notebook."""

    def line(values: list[str]) -> str:
        return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"

    names = headings(result)
    rule = "|" + "|".join(["---", "---", *["---:"] * (len(names) - 2)]) + "|"
    rows = [line(cells(row, result)) for row in result["models"]]
    failed = "".join(f"\n- failed: {text}" for text in failures(result))
    return "\n".join([line(names), rule, *rows, "", caption(result).replace("\n", "  \n")]) + failed + "\n"


def to_csv(result: Mapping[str, Any]) -> str:
    """Numbers as they are, one model a line, one column per seed."""
    seeds = sorted({run["seed"] for row in result["models"] for run in row["runs"]})
    plain = (
        "parameters",
        "flops_forward",
        "flops_step",
        "steps_per_second",
        "memory_bytes",
        "mean",
        "deviation",
        "difference",
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ["model", "layer", "decoder_layer", *plain, "interval_low", "interval_high", "significant", "p"]
    writer.writerow([*names, *(f"{result['metric']}_seed{seed}" for seed in seeds), "failed"])
    for row in result["models"]:
        by_seed = {run["seed"]: run["metrics"].get(result["metric"]) for run in row["runs"]}
        low, high = row["interval"] or (None, None)
        failed = sum(run["status"] == "failed" for run in row["runs"])
        values = [
            row["name"],
            row["layer"],
            row["decoder_layer"],
            *(row[name] for name in plain),
            low,
            high,
            row["significant"],
            row["p"],
        ]
        writer.writerow([*values, *(by_seed.get(seed) for seed in seeds), failed])
    return out.getvalue()


def write_tables(result: Mapping[str, Any], folder: Path) -> None:
    """table.csv and table.md beside comparison.json."""
    (folder / "table.csv").write_text(to_csv(result), encoding="utf-8")
    (folder / "table.md").write_text(markdown(result), encoding="utf-8")
