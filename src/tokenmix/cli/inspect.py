"""`tokenmix inspect`: look into a trained model, with the figures of the papers and every mixing matrix."""

from __future__ import annotations

from pathlib import Path

import typer

from tokenmix.cli import app


@app.command("inspect")
def inspect(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run, or of any saved tokenmix model."),
    text: list[str] | None = typer.Option(
        None, "--text", help="What the model reads; give it twice for a pair of texts."
    ),
    target: str | None = typer.Option(None, "--target", help="What a seq2seq model answers; by default it generates."),
    image: Path | None = typer.Option(None, "--image", help="The picture that a vision model reads."),
    out: Path | None = typer.Option(
        None, "--out", file_okay=False, help="Folder for the page and its figures; default: RUN/inspect."
    ),
) -> None:
    """Make a page of what a model mixes: pick layer and head, point at a token to see what it draws from."""
    if text and image is not None:
        raise ValueError("--text and --image were both given: a model reads one or the other")
    if text and len(text) > 2:
        raise ValueError(f"--text was given {len(text)} times; once for a text, twice for a pair")
    if image is not None and not image.exists():
        raise FileNotFoundError(f"no such image: {image}")
    if target is not None and not text:
        raise ValueError("--target was given without --text: a target answers a text")
    from tokenmix.report import write_inspection
    from tokenmix.report.runs import model_class

    body = model_class(run).body
    if target is not None and body in ("encoder", "vision"):
        raise ValueError(f"--target is for models that answer with text; {run} holds one with body {body!r}")
    if text and len(text) == 2 and body in ("seq2seq", "decoder"):
        raise ValueError(f"--text twice is for models that read pairs; {run} with body {body!r} reads one text")
    page = write_inspection(run, out, inputs=image if image is not None else _texts(text), target=target)
    typer.echo(f"open {page.resolve().as_uri()}")


def _texts(texts: list[str] | None) -> str | tuple[str, ...] | None:
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else tuple(texts)
