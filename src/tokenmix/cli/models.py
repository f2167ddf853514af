"""`tokenmix models`: every model of the papers' tables, with the paper's count beside ours."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from tokenmix.cli import app
from tokenmix.naming import unknown

TOLERANCE = 0.01  # a printed count is met within 1%
NUMBERS = ("d_model", "d_ff", "heads", "layers", "length", "parameters", "paper", "GFLOPs")
COLUMNS = ("model", "layer", "body", *NUMBERS, "from", "why the paper's count is not met")
WIDE, NARROW = 180, ("model", "layer", "parameters", "paper")  # what a terminal of fewer columns shows


def describe(name: str) -> dict[str, Any]:
    """What the listing says about a preset, as plain values.

    >>> describe("gmlp-s16-224")["parameters"]
    19422656
    """
    from tokenmix.models.counting import measure
    from tokenmix.models.presets import PRESETS, preset_config

    preset, config = PRESETS[name], preset_config(name)
    parameters, flops = measure(config)
    site, both = config.site(), config.body == "seq2seq"
    printed = None if preset.millions is None else round(preset.millions * 1e6)
    return {
        "name": name,
        "source": preset.source,
        "body": config.body,
        "layer": config.layer,
        "decoder_layer": config.decoder_layer if both else None,
        "d_model": config.d_model,
        "d_ff": site.d_ff,
        "heads": config.heads,
        "head_dim": site.head_dim,
        "layers": config.layers,
        "decoder_layers": config.decoder_layers if both else None,
        "max_length": config.max_length,
        "parameters": parameters.total,
        "parameters_paper": printed,
        "within_1_percent": None if printed is None else abs(parameters.total / printed - 1) <= TOLERANCE,
        "forward_flops": flops.total,
        "parameters_by_part": parameters.as_dict(),
        "forward_flops_by_part": flops.as_dict(),
        "note": preset.note,
    }


def entries() -> list[dict[str, Any]]:
    """Every preset, described; counted once for a state of the code and then remembered in the user's cache folder."""
    memory = _memory()
    try:
        return json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # never counted, or half written
        pass
    from tokenmix.models.presets import list_presets

    rows = [describe(name) for name in list_presets()]
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        for old in memory.parent.glob("models-*.json"):
            old.unlink(missing_ok=True)
        part = memory.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
        part.replace(memory)
    except OSError:  # a read-only home only costs time
        pass
    return rows


def _memory() -> Path:
    """The file that remembers the counts: its name changes with any line of the code that they depend on."""
    root = Path(__file__).parent.parent
    code = hashlib.sha256(importlib.metadata.version("torch").encode())
    for file in sorted(path for folder in ("mixers", "models", "ops", "cli") for path in (root / folder).rglob("*.py")):
        code.update(file.read_bytes())
    folder = os.environ.get("TOKENMIX_CACHE") or Path.home() / ".cache" / "tokenmix"
    return Path(folder) / f"models-{code.hexdigest()[:16]}.json"


def _layer(entry: dict[str, Any]) -> str:
    if entry["decoder_layer"] in (None, entry["layer"]):
        return entry["layer"]
    return f"{entry['layer']}; decoder: {entry['decoder_layer']}"


def _sizes(entry: dict[str, Any]) -> tuple[str, ...]:
    layers = " + ".join(str(entry[name]) for name in ("layers", "decoder_layers") if entry[name] is not None)
    heads = f"{entry['heads']} × {entry['head_dim']}"
    return str(entry["d_model"]), str(entry["d_ff"]), heads, layers, str(entry["max_length"])


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    off = entry["within_1_percent"] is False
    printed = "" if entry["parameters_paper"] is None else f"{entry['parameters_paper'] / 1e6:g}M"
    return (
        entry["name"],
        _layer(entry),
        entry["body"],
        *_sizes(entry),
        _millions(entry["parameters"]),
        f"[yellow]{printed}[/]" if off else printed,
        f"{entry['forward_flops'] / 1e9:,.2f}",
        entry["source"],
        entry["note"] if off else "",
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e5 else f"{count / 1e6:.2f}M"


@app.command("models")
def models(
    pattern: str = typer.Argument("*", help="A name, a part of names or a pattern, such as gmlp or 'gmlp-*16-224'."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """List every preset: layer, body, sizes, parameters ours and the paper's, FLOPs of a forward pass."""
    everything = entries()
    wanted = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    rows = [entry for entry in everything if fnmatch.fnmatch(entry["name"], wanted)]
    if not rows:
        raise unknown("preset", pattern, [entry["name"] for entry in everything])
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    # into a pipe or a file the table is as wide as it needs to be
    console = Console() if sys.stdout.isatty() else Console(width=10_000, force_terminal=False)
    shown = COLUMNS if console.width >= WIDE else NARROW
    table = Table(*shown)
    for column in table.columns:
        column.overflow = "fold"  # a long name goes over two lines, it is never cut
        column.justify = "right" if column.header in NUMBERS else "left"
    for entry in rows:
        cells = dict(zip(COLUMNS, _cells(entry)))
        table.add_row(*(cells[name] for name in shown))
    table.caption = (
        "GFLOPs: one forward pass of one example at full length, encoder and decoder, matrix products and convolutions "
        "at two operations per multiply-add (papers often print half of that)"
        if shown is COLUMNS
        else f"sizes, FLOPs, sources: in {WIDE} columns, in a pipe, or with --json"
    )
    console.print(table)
