"""Options that `compare` and `search` share: what is trained, on what, and how it is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Task = Annotated[str, typer.Option("--task", "-t", help="Task, mixture, file:…, images:… or shards:FOLDER.")]
Match = Annotated[str, typer.Option(help="Sizes: params, flops or none.")]
Steps = Annotated[int | None, typer.Option(help="Budget in steps (default 3000).")]
Epochs = Annotated[float | None, typer.Option(help="Budget in epochs.")]
Tokens = Annotated[float | None, typer.Option(help="Budget in tokens, such as 1e6.")]
Flops = Annotated[float | None, typer.Option(help="Budget in FLOPs, such as 1e15.")]
Minutes = Annotated[float | None, typer.Option(help="Budget in minutes of training a run.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
Preset = Annotated[str | None, typer.Option(help="Training settings of a paper's table, such as `cogs-scratch`.")]
Body = Annotated[str | None, typer.Option(help="Of layer expressions: seq2seq, encoder, decoder or vision.")]
Width = Annotated[int | None, typer.Option(help="Width.")]
InnerWidth = Annotated[int | None, typer.Option(help="Width of the feed-forward.")]
Heads = Annotated[int | None, typer.Option(help="Attention heads.")]
Layers = Annotated[int | None, typer.Option(help="Layers (of encoder and decoder each).")]
Dropout = Annotated[float | None, typer.Option(help="Dropout.")]
Data = Annotated[Path | None, typer.Option(help="Folder of local data; default: $TOKENMIX_DATA.")]
Form = Annotated[str | None, typer.Option(help="text, classify, span, document or image.")]
Split = Annotated[str | None, typer.Option(help="Judged split; by default the task's own.")]
Examples = Annotated[int | None, typer.Option(min=1, help="Judged examples; by default all.")]
Metric = Annotated[str | None, typer.Option(help="By default the task's headline metric.")]
Beams = Annotated[int, typer.Option(min=1, help="Beams of the final evaluation.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, sharing the GPU or the cores.")]
Engine = Annotated[str, typer.Option(help="local, or ray: a cluster ($RAY_ADDRESS).")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of a run.")]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML or JSON with more training settings.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Any other key: `optimizer.weight_decay=0.01`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


BUDGETS = ("steps", "epochs", "tokens", "flops", "minutes")


def run_settings(config: Path | None, assignments: list[str] | None, **options: Any) -> dict[str, Any]:
    """A part of a `RunConfig`: the file, the options that were given above it, and above those each KEY=VALUE.

    A budget among the options replaces the file's.
    """
    from tokenmix.training.config import assignment, dotted, merge, read_layer

    keys = {
        "task": "data.task", "form": "data.form", "batch_size": "data.batch_size", "data": "data.folder",
        "lr": "optimizer.lr", "body": "model.body", "threads": "device.threads", "preset": "preset",
        **{name: f"budget.{name}" for name in BUDGETS},
        **{name: f"model.options.{name}" for name in ("d_model", "d_ff", "heads", "layers", "dropout")},
    }  # fmt: skip
    given = {keys[name]: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    layers = [read_layer(config)] if config else []
    if any(options.get(name) is not None for name in BUDGETS):
        layers = [{name: part for name, part in layer.items() if name != "budget"} for layer in layers]
    return merge(*layers, dotted(given), *(assignment(text) for text in assignments or []))
