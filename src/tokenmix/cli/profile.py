"""`tokenmix profile`: what models cost, and how their time grows with length."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenmix.cli import app


@app.command("profile")
def profile(
    models: Annotated[list[str], typer.Argument(help="Presets, aliases or layer expressions.", show_default=False)],
    batch: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 8,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the input; by default the model's longest.")
    ] = None,
    target_length: Annotated[int | None, typer.Option(min=1, help="Tokens of the target of a seq2seq model.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Also a curve over these lengths, e.g. 64,128,256,512.")] = None,
    body: Annotated[str, typer.Option(help="Of a layer expression: seq2seq, encoder, decoder or vision.")] = "seq2seq",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the model: --set d_model=256. Repeatable.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="Training steps timed in each of three rounds; 0 only counts.")
    ] = 10,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Count and time MODELS: parameters by part, FLOPs, steps/s, memory, share of peak, growth with length."""
    from tokenmix.compare.plan import contenders
    from tokenmix.compare.profile import length_curve
    from tokenmix.compare.profile import profile as measure

    for name, value, known in (
        ("device", device, ("auto", "cpu", "cuda")),
        ("precision", precision, ("auto", "fp32", "bf16")),
    ):
        if value not in known:
            raise ValueError(f"--{name} must be one of {', '.join(known)}; got {value!r}")
    options = _options(setting or [])
    wanted = _lengths(lengths)
    rows = []
    for entry in contenders(models):
        config = model_config(entry, body, options, max([length or 0, target_length or 0, *wanted]))
        where: dict[str, Any] = {"device": device, "precision": precision}
        found = measure(config, batch=batch, length=length, target_length=target_length, steps=steps, **where)
        if wanted:
            found["curve"] = length_curve(config, wanted, batch=batch, steps=max(1, steps), **where)
        rows.append({"name": entry.name, **found})
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    console = Console() if sys.stdout.isatty() else Console(width=10_000, force_terminal=False)
    console.print(_table(rows))
    if wanted:
        console.print(_curve_table(rows, wanted))


def model_config(entry: Any, body: str, options: dict[str, Any], longest: int = 0) -> Any:
    """The configuration of a contender: a preset's own sizes, or T5 small's for a layer expression."""
    from tokenmix.models import TokenmixConfig, preset_config

    try:
        more = {**entry.model.get("options", {}), **options}
        if "name" in entry.model:
            return preset_config(entry.model["name"], **more)
        sizes: dict[str, Any] = {"d_model": 512, "d_ff": 1024, "heads": 8, "layers": 6}
        if body != "vision" and longest and "max_length" not in more:
            sizes["max_length"] = max(longest, 1)
        return TokenmixConfig(**{**sizes, "body": body, "layer": entry.model["layer"], **more})
    except ValueError as error:
        raise ValueError(f"model {entry.name!r}: {error}") from None


def _options(settings: list[str]) -> dict[str, Any]:
    from tokenmix.training.config import setting

    found = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {text!r}: expected OPTION=VALUE, for example --set d_model=256")
        found[key.strip()] = setting(value)
    return found


def _lengths(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        found = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"--lengths {text!r}: expected whole numbers, for example 64,128,256") from None
    if len(found) < 2 or min(found) < 1:
        raise ValueError(f"--lengths {text!r}: expected at least two lengths of at least 1")
    return found


def _table(rows: list[dict[str, Any]]) -> Table:
    from tokenmix.compare.table import human

    parts = ("embeddings", "mixing", "channel", "cross_attention", "head")
    first = rows[0]
    table = Table(
        caption=Text(
            f"batch {first['batch']}; {first['device']}, {first['precision']}; FLOPs: matrix products, two operations "
            "per multiply-add, backward twice forward; steps: forward, backward and AdamW"
        ),
        caption_justify="left",
    )
    for number, name in enumerate(
        ("model", "length", "parameters", *parts, "forward", "backward", "step", "steps/s", "memory", "of peak")
    ):
        table.add_column(Text(name.replace("_", " ")), justify="left" if not number else "right", overflow="fold")
    for row in rows:
        lengths = str(row["length"]) + (f" + {row['target_length']}" if row["target_length"] else "")
        speed, share = row["steps_per_second"], row["peak_share"]
        table.add_row(
            Text(row["name"]),
            lengths,
            human(row["parameters"]["total"]),
            *(human(row["parameters"][part]) if row["parameters"][part] else "" for part in parts),
            human(row["flops_forward"]["total"]),
            human(row["flops_backward"]),
            human(row["flops_step"]),
            f"{speed:.2f}" if speed else "–",
            human(row["memory_bytes"], "B"),
            f"{100 * share:.1f}%" if share else "–",
        )
    return table


def _curve_table(rows: list[dict[str, Any]], lengths: list[int]) -> Table:
    table = Table(title=Text("milliseconds a step by length"), title_justify="left")
    table.add_column("model", overflow="fold")
    for length in sorted(lengths):
        table.add_column(str(length), justify="right")
    table.add_column("time ~ length^", justify="right")
    for row in rows:
        points = [f"{1000 * point['seconds']:.1f}" for point in row["curve"]["points"]]
        table.add_row(Text(row["name"]), *points, f"{row['curve']['exponent']:.2f}")
    return table
