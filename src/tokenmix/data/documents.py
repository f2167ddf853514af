"""Text files to documents: plain, `.gz` or `.xz`; split at blank lines, one per line, or a field of JSON lines.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "text.txt"
>>> _ = path.write_text("One article,\\ntwo lines.\\n\\nAnother.\\n", encoding="utf-8")
>>> list(read_documents([path]))
['One article,\\ntwo lines.', 'Another.']
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenmix.data.readers import file_errors
from tokenmix.naming import unknown

SPLITS = ("blank-line", "line", "jsonl")

Progress = Callable[[int], None]  # is told how many bytes of the file, as it lies on the disk, have been read


def read_documents(
    paths: Iterable[str | Path], split: str = "blank-line", field: str = "text", progress: Progress | None = None
) -> Iterator[str]:
    """The documents of all files in order, without empty ones.

    Args:
        split: `blank-line` (a document ends at an empty line), `line` (every line is one), `jsonl` (``field`` of the
            JSON object on every line).
        progress: called after every document with the bytes read from the disk since the last call.
    """
    if split not in SPLITS:
        raise unknown("way to split text into documents", split, SPLITS)
    for path in check_files(paths):
        before = 0
        with open(path, "rb") as raw:
            lines = text_lines(path, raw)
            documents = _articles(lines) if split == "blank-line" else lines
            for number, document in enumerate(documents, start=1):
                document = _json_field(path, number, document, field) if split == "jsonl" else document.rstrip("\r\n")
                if document and not document.isspace():
                    yield document
                if progress and (now := raw.tell()) != before:
                    progress(now - before)
                    before = now


def read_lines(path: str | Path) -> Iterator[str]:
    """Every line of a file, blank ones too, without its line end."""
    for file in check_files([path]):
        with open(file, "rb") as raw:
            for line in text_lines(file, raw):
                yield line.rstrip("\r\n")


def check_files(paths: Iterable[str | Path]) -> list[Path]:
    """``paths`` as `Path`s, or an error that names the first that is no file."""
    files = [Path(path) for path in paths]
    for path in files:
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name its text files, for example {path}/*.txt")
        if not path.is_file():
            raise ValueError(f"text file {path} does not exist (looked in {path.parent.resolve()})")
    return files


def text_lines(path: Path, raw: Any) -> Iterator[str]:
    """The lines of an open file, each with its line end, which is "\\n" only: U+2028 and the like are part of the text."""
    unpack: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix)
    with file_errors(path):
        text = io.TextIOWrapper(unpack(raw) if unpack else raw, encoding="utf-8-sig", newline="\n")
        yield from text
        text.detach()  # else it would close the file, whose position is still wanted


def _articles(lines: Iterable[str]) -> Iterator[str]:
    article: list[str] = []
    for line in lines:
        if line.isspace():
            if article:
                yield "".join(article)
                article = []
        else:
            article.append(line)
    if article:
        yield "".join(article)


def _json_field(path: Path, number: int, line: str, field: str) -> str:
    if line.isspace():
        return ""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}: expected one JSON object per line ({error})") from None
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        has = ", ".join(record) if isinstance(record, dict) else f"a {type(record).__name__}"
        raise ValueError(f"{path}, line {number}: expected an object with the text in {field!r}, found: {has}")
    text: str = record[field]
    # JSON can spell half a surrogate pair, which is no character: it becomes U+FFFD.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
