"""`tokenmix compare`: which way of mixing tokens is best for a task, and at what cost."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tokenmix.cli import app

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
    task: Annotated[
        str, typer.Option("--task", "-t", help="Task, mixture, file:…, images:… or shards:FOLDER.")
    ] = "scan",
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 3, or 0,7,11.")] = "1",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; by default runs/compare-TASK.")] = None,
    match: Annotated[str, typer.Option(help="Sizes: params, flops or none.")] = "none",
    baseline: Annotated[
        str | None, typer.Option(help="Whom the others are measured against; by default the first.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in steps (default 3000).")] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in epochs.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Budget in tokens, such as 1e6.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget in FLOPs, such as 1e15.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget in minutes of training a run.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Training settings of a paper's table, such as `cogs-scratch`.")
    ] = None,
    body: Annotated[str | None, typer.Option(help="Of layer expressions: seq2seq, encoder, decoder or vision.")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width.")] = None,
    d_ff: Annotated[int | None, typer.Option(help="Width of the feed-forward.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers (of encoder and decoder each).")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of local data; default: $TOKENMIX_DATA.")] = None,
    form: Annotated[str | None, typer.Option(help="text, classify, span, document or image.")] = None,
    split: Annotated[str | None, typer.Option(help="Judged split; by default the task's own.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Judged examples; by default all.")] = None,
    metric: Annotated[str | None, typer.Option(help="By default the task's headline metric.")] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams of the final evaluation.")] = 1,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, sharing the GPU or the cores.")
    ] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray: a cluster ($RAY_ADDRESS).")] = "local",
    threads: Annotated[int | None, typer.Option(help="CPU threads of a run.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML or JSON with more training settings.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Any other key: `optimizer.weight_decay=0.01`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json instead of the table.")] = False,
) -> None:
    """Train MODELS under one budget, data order and seeds; table, figures and page.

    `tokenmix compare --task scan --models transformer "random | geglu" "dot | remix" gmlp --seeds 3`
    """
    from tokenmix.compare.comparison import compare as run
    from tokenmix.compare.plan import Judging, slug
    from tokenmix.training.config import assignment, dotted, merge, read_layer

    options: dict[str, Any] = {
        "data.task": task, "preset": preset, "budget.steps": steps, "budget.epochs": epochs, "budget.tokens": tokens,
        "budget.flops": flops, "budget.minutes": minutes, "data.batch_size": batch_size, "optimizer.lr": lr,
        "model.body": body, "model.options.d_model": d_model, "model.options.d_ff": d_ff, "model.options.heads": heads,
        "model.options.layers": layers, "model.options.dropout": dropout, "data.form": form,
        "data.folder": None if data is None else str(data), "device.threads": threads,
    }  # fmt: skip
    given = merge(
        *([read_layer(config)] if config else []), dotted(options), *(assignment(text) for text in set_ or [])
    )
    folder = out or Path("runs") / f"compare-{slug(task)}"
    result = run(
        [*(models or []), *(more or [])],
        given,
        seeds=_seeds(seeds),
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


def _seeds(text: str) -> int | list[int]:
    try:
        found = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or min(found) < 0 or ("," not in text and found[0] < 1):
        raise ValueError(f"--seeds {text!r}: expected how many (3), or which (0,7,11)")
    return found if "," in text else found[0]
