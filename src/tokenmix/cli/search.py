"""`tokenmix search`: the best way of mixing tokens for a task at equal cost, found by trials and confirmed by new seeds."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenmix.cli import app, options

if TYPE_CHECKING:
    from tokenmix.compare.search import Trial

# Before torch is imported: threads that wait for each other give way soon, or a busy machine trains 10 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@app.command("search")
def search(
    task: options.Task = "scan",
    trials: Annotated[int, typer.Option(min=1, help="Different expressions to try, with one seed each.")] = 20,
    finalists: Annotated[
        int, typer.Option(min=0, help="The best so many are compared with the baseline by new seeds; 0: none.")
    ] = 3,
    seeds: Annotated[str, typer.Option(help="Of the finalists, how many or which: 3, or 0,7,11.")] = "3",
    term: Annotated[
        list[str] | None,
        typer.Option("--term", help="An attention term that may be in a sum; repeatable. [default: dot, random, …]"),
    ] = None,
    mixer: Annotated[
        list[str] | None,
        typer.Option("--mixer", help="Another mixer, in place of a sum; repeatable. [default: lightconv, …]"),
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option("--channel", help="What may stand behind; repeatable. [default: geglu, mlp, remix, gmlp]"),
    ] = None,
    decoder: Annotated[
        bool, typer.Option("--decoder", help="Search a layer of its own for the decoder of a seq2seq model.")
    ] = False,
    start: Annotated[list[str] | None, typer.Option(help="An expression to try early; repeatable.")] = None,
    baseline: Annotated[
        str, typer.Option(help="Whose size all are brought to, and whom the finalists are compared with.")
    ] = "dot | geglu",
    match: options.Match = "params",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; by default runs/search-TASK.")] = None,
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
    as_json: options.Json = False,
) -> None:
    """Find the best layer expression for a task at equal cost: trials that Optuna proposes, then finalists by new seeds.

    `tokenmix search --task scan --trials 20 --steps 500 --jobs 2`

    A layer of the space is a sum of terms, or one mixer, or nothing, then a channel. The same command goes on after a
    break.
    """
    from tokenmix.cli.compare import seeds_of
    from tokenmix.cli.compare import show as show_comparison
    from tokenmix.compare.comparison import compare
    from tokenmix.compare.plan import Judging, slug
    from tokenmix.compare.search import SEED, Space, same
    from tokenmix.compare.search import search as find

    given = options.run_settings(
        config, set_, task=task, preset=preset, steps=steps, epochs=epochs, tokens=tokens, flops=flops,
        minutes=minutes, batch_size=batch_size, lr=lr, body=body, d_model=d_model, d_ff=d_ff, heads=heads,
        layers=layers, dropout=dropout, form=form, data=data, threads=threads,
    )  # fmt: skip
    # naming one kind of part alone means: of the other kinds nothing but the channels
    named = {"terms": term, "mixers": mixer} if term or mixer else {}
    parts = {name: tuple(texts or ()) for name, texts in named.items()} | (
        {"channels": tuple(channel)} if channel else {}
    )
    space = Space(**parts, decoder=decoder)
    counted = seeds_of(seeds)
    if finalists and not isinstance(counted, int) and SEED in counted:
        raise ValueError(f"--seeds {seeds}: {SEED} is the seed of the trials; finalists are compared by others")
    folder = out or Path("runs") / f"search-{slug(task)}"
    shared: dict[str, Any] = {
        "rule": match, "judging": Judging(split, examples, beams, metric), "engine": engine, "jobs": jobs,
    }  # fmt: skip
    tried = find(given, space, trials=trials, start=start or (), baseline=baseline, out=folder, **shared)
    best = [trial.layer for trial in tried if trial.fair and not same(trial.layer, baseline)]
    result = None
    if finalists and best:
        rivals = [baseline, *best[:finalists]]
        result = compare(rivals, given, seeds=counted, out=folder / "finalists", pool=folder, **shared)
    if as_json:
        found = {"trials": [asdict(trial) for trial in tried], "finalists": result}
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    # into a pipe or a file a table is as wide as it needs to be
    console = Console() if sys.stdout.isatty() else Console(width=10_000, force_terminal=False)
    console.print(_table(tried, json.loads((folder / "search.json").read_text(encoding="utf-8"))["metric"]))
    console.print(
        f"trials            {(folder / 'search.json').resolve()}", highlight=False, markup=False, soft_wrap=True
    )
    if result is not None:
        show_comparison(result, folder / "finalists", console)
    if all(trial.value is None for trial in tried):
        raise typer.Exit(1)


def _table(tried: list[Trial], metric: str) -> Table:
    from tokenmix.compare.search import described

    table = Table(title="trials, one seed each: chosen by luck too", title_justify="left")
    table.add_column("layer", overflow="fold")
    table.add_column("result", overflow="fold")
    for name in ("parameters", "steps/s"):
        table.add_column(name, justify="right")
    for trial in tried:
        size = "–" if trial.parameters is None else f"{trial.parameters:,}"
        speed = "–" if trial.steps_per_second is None else f"{trial.steps_per_second:.3g}"
        table.add_row(Text(trial.layer), Text(described(trial, metric)), size, speed)
    return table
