"""`tokenmix prepare`: tokenize text once, into memory-mapped shards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tokenmix.cli import app


@app.command()
def prepare(
    text: Annotated[list[Path], typer.Argument(help="Text files, plain, .gz or .xz.", show_default=False)],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", "-t", help="Folder, spiece.model, vocab.txt or Hub name.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the shards.", show_default=False)
    ],
    split: Annotated[
        str,
        typer.Option(help="What separates documents: **blank-line**, **line**, or **jsonl** (one object per line)."),
    ] = "blank-line",
    field: Annotated[str, typer.Option(help="With --split jsonl: the field that holds the text.")] = "text",
    workers: Annotated[int, typer.Option(min=0, help="Threads; 0 for one per core.")] = 0,
    shard_size: Annotated[int, typer.Option(min=1, help="Characters of text per shard.")] = 8_000_000,
    end_mark: Annotated[
        bool, typer.Option(help="Put the end token behind every document (T5 itself joins documents without one).")
    ] = True,
) -> None:
    """Tokenize TEXT into memory-mapped shards for pretraining.

    A run that was cut off goes on when the same command is given again; the files come out the same.
    """
    from tokenmix.data.documents import check_files
    from tokenmix.data.shard_writer import prepare_shards
    from tokenmix.data.tokenizers import load_tokenizer

    total = sum(path.stat().st_size for path in check_files(text))
    opened = load_tokenizer(tokenizer)
    started, tokens = time.perf_counter(), 0
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=total, speed="")

        def on_shard(record: dict[str, Any], read: int) -> None:
            nonlocal tokens
            tokens += record["tokens"]
            speed = tokens / (time.perf_counter() - started)
            bar.update(task, advance=read, speed=f"{tokens:,} tokens, {speed:,.0f}/s")

        manifest = prepare_shards(
            text,
            opened,
            out,
            split=split,
            field=field,
            workers=workers or None,
            shard_size=shard_size,
            end_mark=end_mark,
            on_shard=on_shard,
        )
        bar.update(task, completed=total)
    seconds = time.perf_counter() - started
    Console(soft_wrap=True).print(
        f"{manifest['tokens']:,} tokens of {manifest['documents']:,} documents in {len(manifest['shards'])} shards "
        f"({manifest['dtype']}), {seconds:.1f} s → {out}",
        highlight=False,
    )
