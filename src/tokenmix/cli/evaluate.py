"""`tokenmix evaluate`: checkpoints on tasks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from tokenmix.cli import app


@app.command()
def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, checkpoints or Hugging Face folders.", show_default=False)
    ],
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="Task or mixture, any number; default: what the run was trained on."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split; default: the task's own.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of local data; default: $TOKENMIX_DATA.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many examples.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples at a time.")] = 128,
    beams: Annotated[int, typer.Option(min=1, help="Beams, where the task generates.")] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="Of beam search (default 1).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    predictions: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write inputs, targets and predictions here, as JSON lines."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Evaluate RUNS on tasks.

    `tokenmix evaluate runs/a --task scan --split test`
    """
    from tokenmix.data.mixtures import MIXTURES, leave_out_missing
    from tokenmix.evaluation.decoding import search_options
    from tokenmix.evaluation.evaluate import evaluate_task, open_checkpoint

    if predictions is not None and not predictions.parent.is_dir():
        raise ValueError(f"--predictions {predictions}: there is no folder {predictions.parent}; make it first")
    options = search_options(beams, length_penalty)
    console = Console(stderr=True)
    results, rows = [], []
    with Progress(console=console, transient=True) as bar:
        for run in runs:
            checkpoint = open_checkpoint(run, device, precision)
            trained = _data_of(run)
            if not task and "task" not in trained:
                raise ValueError(f"{run} does not say what it was trained on; give --task")
            for asked, name in ((t, part) for t in task or [trained["task"]] for part in MIXTURES.get(t) or [t]):
                line = bar.add_task(f"{run} on {name}", total=None)
                with leave_out_missing(asked, name):
                    result = evaluate_task(
                        checkpoint, name, split, data=data or trained.get("folder"), limit=limit,
                        batch_size=batch_size, on_examples=partial(_total, bar, line),
                        on_batch=partial(bar.advance, line), **options,
                    )  # fmt: skip
                    results.append(result)
                    if predictions is not None:
                        rows += [
                            {"run": str(run), "task": name, "input": _input(e), "target": _target(e), "prediction": p}
                            for e, p in zip(result.asked, result.predictions)
                        ]
                bar.remove_task(line)
    if not results:
        raise ValueError("nothing was evaluated: none of the tasks has data here; set --data")
    if predictions is not None:
        predictions.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([result.to_dict() for result in results], indent=2, ensure_ascii=False))
        return
    table = Table("run", "task", "split", "examples", "metrics", "note")
    for column in table.columns:
        column.overflow = "fold"
    for result in results:
        shown = "  ".join(f"{key} {value:.2f}" for key, value in result.metrics.items())
        table.add_row(result.checkpoint, result.task, result.split, f"{result.examples:,}", shown, result.note)
    out = Console()
    (out if out.is_terminal else Console(width=10_000)).print(table)


def _total(bar: Progress, line: TaskID, count: int) -> None:
    bar.update(line, total=count)


def _input(example: Any) -> Any:
    return example.input or example.question or list(example.texts)


def _target(example: Any) -> Any:
    """What a prediction is compared with: a label where there is one, 0 too."""
    if example.label is not None:
        return example.label
    return example.target or list(example.answers)


def _data_of(run: Path) -> dict[str, Any]:
    """What the run was trained on, from its configuration; nothing for a model from elsewhere."""
    from tokenmix.training.config import read_layer

    for folder in (run, run.parent.parent):
        if (folder / "config.yaml").exists():
            return read_layer(folder / "config.yaml")["data"]
    return {}
