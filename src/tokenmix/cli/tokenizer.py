"""`tokenmix tokenizer`: train a tokenizer on text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tokenmix.cli import app


@app.command()
def tokenizer(
    text: Annotated[list[Path], typer.Argument(help="Text files, plain, .gz or .xz.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the tokenizer.", show_default=False)
    ],
    kind: Annotated[
        str, typer.Option(help="**unigram** (as SentencePiece's), **bpe** (byte-level), or **word** (split at spaces).")
    ] = "unigram",
    vocab: Annotated[int, typer.Option(help="Tokens, not counting the sentinels.")] = 32_000,
    sentinels: Annotated[int, typer.Option(min=-1, help="`<extra_id_…>` tokens; -1: 100, none for words.")] = -1,
    style: Annotated[str, typer.Option(help="**t5** ends a text with `</s>`, **bert** writes `<cls> … <sep>`.")] = "t5",
    normalization: Annotated[str, typer.Option(help="**none** keeps every character; **nfkc** as T5.")] = "none",
    split: Annotated[str, typer.Option(help="What separates documents: blank-line, line, jsonl.")] = "blank-line",
    field: Annotated[str, typer.Option(help="With --split jsonl: the field that holds the text.")] = "text",
    characters: Annotated[int, typer.Option(min=1, help="Learn from this many characters at the start.")] = 50_000_000,
) -> None:
    """Train a tokenizer on TEXT and save it as a Hugging Face folder that `AutoTokenizer` opens."""
    from tokenmix.data.documents import check_files, read_documents
    from tokenmix.data.tokenizers import train_tokenizer

    console = Console(soft_wrap=True)
    documents = read_documents(check_files(text), split, field)
    trained = train_tokenizer(
        _first(documents, characters),
        kind=kind,  # type: ignore[arg-type]
        vocab_size=vocab,
        sentinels=None if sentinels < 0 else sentinels,
        style=style,  # type: ignore[arg-type]
        normalization=normalization,  # type: ignore[arg-type]
        progress=console.is_terminal,
    )
    trained.save_pretrained(out)
    console.print(f"{len(trained):,} tokens ({kind}, {style} style) → {out}", highlight=False)


def _first(documents: Iterable[str], characters: int) -> Iterator[str]:
    """Documents until there are ``characters`` of them."""
    for document in documents:
        yield document
        characters -= len(document)
        if characters <= 0:
            return
