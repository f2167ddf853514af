"""`tokenmix train`: train a model on a task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmix.cli import app

# Before torch is imported: threads that wait for each other give way soon, or a busy machine trains 10 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@app.command()
def train(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Preset (`tokenmix models` lists them).")] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", "-l", help="Layer expression, such as `random + dot | remix`.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="Task, mixture, file:…, images:… or shards:FOLDER (default scan)."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML or JSON file; options lie above it.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Training settings of a paper's table, such as `gmlp-mlm`.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in steps (default 3000).")] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in epochs.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Budget in tokens, such as 1e6.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget in FLOPs, such as 1e15.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget in minutes of training.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and dropout.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step, all processes together.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or adafactor.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear, cosine or inverse_sqrt.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Steps, or a share below 1.")] = None,
    weights: Annotated[str | None, typer.Option(help="Start from the weights of a run or Hugging Face folder.")] = None,
    body: Annotated[str | None, typer.Option(help="With --layer: seq2seq, encoder, decoder or vision.")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width.")] = None,
    d_ff: Annotated[int | None, typer.Option(help="Width of the feed-forward.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers (of encoder and decoder each).")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Longest sequence of the model; by default what the data needs.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of local data; default: $TOKENMIX_DATA.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder, file or Hub name; or word, unigram, bpe.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Size of a tokenizer made from the task.")] = None,
    form: Annotated[str | None, typer.Option(help="text, classify, span, document or image.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="span_corruption, masked_lm, causal_lm, joined_causal_lm.")
    ] = None,
    max_input: Annotated[int | None, typer.Option(help="Longest input in tokens; longer ones are cut.")] = None,
    max_target: Annotated[int | None, typer.Option(help="Longest target in tokens.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on the first so many examples.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that make batches.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations; 0: only at the end.")] = None,
    validation_examples: Annotated[int | None, typer.Option(help="Examples of a validation; 0: all.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many validations without a gain.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    keep_last: Annotated[int | None, typer.Option(help="Checkpoints to keep (default 2).")] = None,
    keep_every: Annotated[int | None, typer.Option(help="Also keep those at multiples of this step.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="**auto**: go on from the last good checkpoint; or a step.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
    compile_: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile (default: on a GPU).")
    ] = None,
    accumulate: Annotated[int | None, typer.Option(help="Micro-batches per step.")] = None,
    auto_batch: Annotated[
        bool | None, typer.Option("--auto-batch/--no-auto-batch", help="Out of memory: halve and accumulate.")
    ] = None,
    sharding: Annotated[str | None, typer.Option(help="Several processes: none (DDP) or fsdp.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    on_nonfinite: Annotated[str | None, typer.Option(help="NaN loss: stop or skip.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Any other key: `optimizer.betas=[0.9,0.95]`.")
    ] = None,
) -> None:
    """Train a model on a task; the run folder opens with `from_pretrained`.

    `tokenmix train --model remixer-tiny --task scan --out runs/a`
    """
    from tokenmix.training.config import RunConfig, assignment, dotted, merge, read_layer

    options: dict[str, Any] = {
        "model.name": model,
        "model.layer": layer,
        "data.task": task,
        "out": None if out is None else str(out),
        "preset": preset,
        "budget.steps": steps,
        "budget.epochs": epochs,
        "budget.tokens": tokens,
        "budget.flops": flops,
        "budget.minutes": minutes,
        "seed": seed,
        "data.batch_size": batch_size,
        "optimizer.lr": lr,
        "optimizer.name": optimizer,
        "schedule.name": schedule,
        "schedule.warmup": warmup,
        "model.weights": weights,
        "model.body": body,
        "model.options.d_model": d_model,
        "model.options.d_ff": d_ff,
        "model.options.heads": heads,
        "model.options.layers": layers,
        "model.options.max_length": max_length,
        "model.options.dropout": dropout,
        "data.folder": None if data is None else str(data),
        "data.tokenizer": tokenizer,
        "data.vocab_size": vocab,
        "data.form": form,
        "data.objective": objective,
        "data.max_input": max_input,
        "data.max_target": max_target,
        "data.limit": limit,
        "data.workers": workers,
        "validation.every": validate_every,
        "validation.examples": validation_examples,
        "validation.patience": patience,
        "checkpoints.every": save_every,
        "checkpoints.keep_last": keep_last,
        "checkpoints.keep_every": keep_every,
        "resume": resume,
        "device.device": device,
        "device.precision": precision,
        "device.compile": compile_,
        "device.accumulate": accumulate,
        "device.auto_batch": auto_batch,
        "device.sharding": sharding,
        "device.threads": threads,
        "on_nonfinite": on_nonfinite,
    }
    chosen = dotted(options)
    file = read_layer(config) if config else {}
    if "budget" in chosen:
        file.pop("budget", None)  # an option's stands in its place, not beside it
    given = merge(file, chosen, *(assignment(text) for text in set_ or []))
    if "out" not in given:
        raise ValueError("no run folder: give --out, such as --out runs/a")
    if validation_examples == 0:
        given["validation"]["examples"] = None
    run = RunConfig.of(given)

    from tokenmix.training import ConsoleProgress
    from tokenmix.training import train as start

    progress = ConsoleProgress()
    try:
        result = start(run, callbacks=[progress])
    finally:
        progress.close()
    if result.status == "interrupted":
        raise typer.Exit(130)
