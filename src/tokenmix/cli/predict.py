"""`tokenmix predict`: ask a trained model."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmix.cli import app


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder, checkpoint or Hugging Face folder.", show_default=False)],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read lines from here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line: input and prediction.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Lines answered together.")] = 64,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer in tokens; default: what the model takes.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Of beam search.")] = 1.0,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="Of drawing.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens with this much probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of drawing.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Print the model's answer to each TEXT, line by line, as they come.

    A classifier takes a pair of texts with a tab between them, a question answerer QUESTION, tab, CONTEXT.

    `tokenmix predict runs/a "jump twice and walk left"`
    """
    if text and file:
        raise ValueError("give texts or --file, not both")
    from tokenmix.evaluation.answer import Answerer

    decoding: dict[str, Any] = {"num_beams": beams, "length_penalty": length_penalty} if beams > 1 else {}
    if sample:
        decoding |= {"do_sample": True, "temperature": temperature, "top_p": top_p}
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
    elif file:
        try:
            with open(file, encoding="utf-8") as opened:
                yield from (line.rstrip("\r\n") for line in opened)
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is no UTF-8 text: {error}") from None
    else:
        yield from (line.rstrip("\r\n") for line in sys.stdin)


def _batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Never more than ``size`` lines in memory; with a large file, batches of similar length are made within each."""
    while batch := list(itertools.islice(lines, size)):
        yield batch
