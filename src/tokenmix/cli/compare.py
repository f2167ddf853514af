"""`tokenmix compare`: which way of mixing tokens is best for a task, and at what cost."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tokenmix.cli import app, options

# Before torch is imported: threads that wait for each other give way soon, or a busy machine trains 10 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@app.command("compare")
def compare(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[MODELS]...", help="Models, as after --models.", show_default=False)
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            "-m",
            help='Presets, short names and layer expressions: `transformer "random | geglu" "gmlp ; dot | geglu"` '
            "(encoder ; decoder), each with a name of its own by `NAME=…`. The first is the baseline.",
        ),
    ] = None,
    task: options.Task = "scan",
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 3, or 0,7,11.")] = "1",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; by default runs/compare-TASK.")] = None,
    match: options.Match = "none",
    baseline: Annotated[
        str | None, typer.Option(help="Whom the others are measured against; by default the first.")
    ] = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    tokens: options.Tokens = None,
    flops: options.Flops = None,
    minutes: options.Minutes = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    preset: options.Preset = None,
    body: options.Body = None,
    d_model: options.Width = None,
    d_ff: options.InnerWidth = None,
    heads: options.Heads = None,
    layers: options.Layers = None,
    dropout: options.Dropout = None,
    data: options.Data = None,
    form: options.Form = None,
    split: options.Split = None,
    examples: options.Examples = None,
    metric: options.Metric = None,
    beams: options.Beams = 1,
    jobs: options.Jobs = 1,
    engine: options.Engine = "local",
    threads: options.Threads = None,
    config: options.Config = None,
    set_: options.Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json instead of the table.")] = False,
) -> None:
    """Train MODELS under one budget, data order and seeds; table, figures and page.

    `tokenmix compare --task scan --models transformer "random | geglu" "dot | remix" gmlp --seeds 3`
    """
    from tokenmix.compare.comparison import compare as run
    from tokenmix.compare.plan import Judging, slug

    given = options.run_settings(
        config, set_, task=task, preset=preset, steps=steps, epochs=epochs, tokens=tokens, flops=flops,
        minutes=minutes, batch_size=batch_size, lr=lr, body=body, d_model=d_model, d_ff=d_ff, heads=heads,
        layers=layers, dropout=dropout, form=form, data=data, threads=threads,
    )  # fmt: skip
    folder = out or Path("runs") / f"compare-{slug(task)}"
    result = run(
        [*(models or []), *(more or [])],
        given,
        seeds=seeds_of(seeds),
        out=folder,
        rule=match,
        judging=Judging(split, examples, beams, metric),
        baseline=baseline,
        engine=engine,
        jobs=jobs,
    )
    if as_json:
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        show(result, folder)
    if all(run["status"] == "failed" for row in result["models"] for run in row["runs"]):
        raise typer.Exit(1)


def show(result: dict[str, Any], folder: Path, console: Console | None = None) -> None:
    """The table, what failed, and where everything is."""
    from tokenmix.compare.table import failures, rich_table

    if console is None:  # into a pipe or a file the table is as wide as it needs to be
        console = Console() if sys.stdout.isatty() else Console(width=10_000, force_terminal=False)
    console.print(rich_table(result))
    for line in failures(result):
        console.print(f"failed: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    files = [name for name in ("report.html", "comparison.json", "table.csv", "table.md") if (folder / name).exists()]
    for name in files:
        console.print(f"{name:<17} {(folder / name).resolve()}", highlight=False, markup=False, soft_wrap=True)


def seeds_of(text: str) -> int | list[int]:
    """How many seeds, or which.

    >>> seeds_of("3"), seeds_of("0,7")
    (3, [0, 7])
    """
    try:
        found = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or min(found) < 0 or ("," not in text and found[0] < 1):
        raise ValueError(f"--seeds {text!r}: expected how many (3), or which (0,7,11)")
    if "," in text and len(set(found)) < len(found):
        raise ValueError(f"--seeds {text!r} names a seed twice")
    return found if "," in text else found[0]
