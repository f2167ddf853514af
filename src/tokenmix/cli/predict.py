"""`tokenmix predict`: ask a trained model."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tokenmix.cli import app


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder, checkpoint or Hugging Face folder.", show_default=False)],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read lines from here, plain, .gz or .xz.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line: input and prediction.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Lines answered together.")] = 64,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer in tokens; default: what the model takes.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="Of beam search (default 1).")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of drawing (default 1).")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest tokens with this much probability (default 1).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of drawing.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Print the model's answer to each TEXT, line by line, as they come.

    A classifier takes a pair of texts with a tab between them, a question answerer QUESTION, tab, CONTEXT.

    `tokenmix predict runs/a "jump twice and walk left"`
    """
    if text and file:
        raise ValueError("give texts or --file, not both")
    drawing = {name: v for name, v in (("temperature", temperature), ("top_p", top_p)) if v is not None}
    if drawing and not sample:
        raise ValueError(
            f"{' and '.join(drawing)} have no effect on the likeliest answer; add --sample to draw answers"
        )
    from tokenmix.evaluation.answer import Answerer
    from tokenmix.evaluation.decoding import search_options

    decoding = search_options(beams, length_penalty) | ({"do_sample": True, **drawing} if sample else {})
    answerer = Answerer(run, device=device, max_new_tokens=max_tokens, seed=seed, **decoding)
    for lines in _batches(_lines(text, file), batch_size if text or file or not sys.stdin.isatty() else 1):
        for line, answer in zip(lines, answerer(lines)):
            typer.echo(
                json.dumps({"input": line, "prediction": answer}, ensure_ascii=False) if as_json else str(answer)
            )
        sys.stdout.flush()


def _lines(text: list[str] | None, file: Path | None) -> Iterator[str]:
    if text:
        yield from text
        return
    from tokenmix.data.documents import read_lines, text_lines

    if file:
        yield from read_lines(file)
    else:
        yield from (line.rstrip("\r\n") for line in text_lines(Path("standard input"), sys.stdin.buffer))


def _batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Never more than ``size`` lines in memory; with a large file, batches of similar length are made within each."""
    while batch := list(itertools.islice(lines, size)):
        yield batch
