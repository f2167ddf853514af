"""Files to rows: plain, `.gz` and `.xz` files of tsv, csv, jsonl, text, parallel text and idx arrays.

A reader takes a path and yields `Row`s. A row knows its file and line: whoever finds it malformed can say where.

>>> row = Row({"text": "a b"}, "train.tsv", 7)
>>> row["label"]
Traceback (most recent call last):
ValueError: train.tsv, line 7: expected a field 'label', found only: text
"""

from __future__ import annotations

import csv
import gzip
import html
import json
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

log = logging.getLogger(__name__)
COMPRESSED = ("", ".gz", ".xz")


class Row(dict):
    """The fields of one record, and the file and line they stand in."""

    __slots__ = ("line", "path")

    def __init__(self, fields: dict[str, Any], path: str | Path = "", line: int = 0):
        super().__init__(fields)
        self.path, self.line = path, line

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"{self.where}: expected a field {key!r}, found only: {', '.join(map(str, self))}")

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"

    def derive(self, **fields: Any) -> Row:
        """Another row made out of this one: errors in it still name this file and line."""
        return Row(fields, self.path, self.line)


Reader = Callable[[Path], Iterator[Row]]


def malformed(row: Row, error: Exception) -> ValueError:
    """The error for a row that could not be understood: file, line, and what was expected."""
    message = str(error)
    if not isinstance(error, ValueError):
        message = (
            f"expected the fields of the official layout, found another structure ({type(error).__name__}: {error})"
        )
    return ValueError(message if message.startswith(row.where) else f"{row.where}: {message}")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What may be wrong with the bytes of a file, as errors that name it and what stands there."""
    try:
        yield
    except UnicodeDecodeError as error:
        found = error.object[max(0, error.start - 20) : error.start + 4]
        raise ValueError(
            f"{path} is not UTF-8 text ({error.reason} in {found!r}); convert it first, for example with iconv"
        ) from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); it is cut short or not a {path.suffix} file") from None


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The file's uncompressed bytes."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with file_errors(path), opener(path, "rb") as file:
        yield file


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file's text: UTF-8 (a byte order mark is dropped), lines ending at "\\n" only."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with file_errors(path), opener(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        yield file


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a text file."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip("\r\n")


def _header(path: Path, names: list[str]) -> list[str]:
    """The names of the columns, each of which must stand there once."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}, line 1: the column {name!r} stands there {names.count(name)} times; rename one")
    return names


def tsv(columns: Sequence[str] = (), optional: int = 0, corrupt: int = 0) -> Reader:
    """A reader of tab-separated lines without quoting. No `columns`: the first line names them.

    That many `optional` trailing columns may be absent. Up to `corrupt` rows with a wrong number of fields are passed
    over (the released file has them), any more is an error. Blank lines are skipped.
    """

    def read(path: Path) -> Iterator[Row]:
        names, left = list(columns), corrupt
        for number, line in numbered_lines(path):
            if not names:
                names = _header(path, line.split("\t"))
                continue
            fields = line.split("\t")
            if len(names) - optional <= len(fields) <= len(names):
                yield Row(dict(zip(names, fields, strict=False)), path, number)
            elif not line:
                continue
            elif left:
                left -= 1
                log.warning(
                    "%s, line %d: passed over a row with %d fields instead of %d", path, number, len(fields), len(names)
                )
            else:
                raise ValueError(
                    f"{path}, line {number}: expected {len(names)} tab-separated fields ({', '.join(names)}), "
                    f"found {len(fields)}: {line[:80]!r}"
                )

    return read


def csv_rows(columns: Sequence[str] = (), optional: int = 0) -> Reader:
    """A reader of quoted comma-separated records, which may span lines. No `columns`: the first record names them."""

    def read(path: Path) -> Iterator[Row]:
        csv.field_size_limit(1 << 30)
        names = list(columns)
        with open_text(path) as file:
            records = csv.reader(file, strict=True)
            start = 1
            try:
                for fields in records:
                    if not names:
                        names = _header(path, fields)
                    elif len(names) - optional <= len(fields) <= len(names):
                        yield Row(dict(zip(names, fields, strict=False)), path, start)
                    elif fields:
                        raise ValueError(
                            f"{path}, line {start}: expected {len(names)} comma-separated fields ({', '.join(names)}), "
                            f"found {len(fields)}"
                        )
                    start = records.line_num + 1
            except csv.Error as error:
                raise ValueError(f"{path}, line {start}: expected a well-formed csv record, found: {error}") from error

    return read


def jsonl(path: Path) -> Iterator[Row]:
    """One JSON object a line; blank lines are skipped."""
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: expected a JSON object, found {line[:80]!r} ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, found {line[:80]!r}")
        yield Row(record, path, number)


def json_document(path: Path) -> Any:
    """The content of a file that is one JSON value."""
    with open_text(path) as file:
        try:
            return json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: expected JSON, found: {error.msg}") from error


def lines(path: Path) -> Iterator[Row]:
    """One text a line, blank lines skipped: {"text": …}."""
    for number, line in numbered_lines(path):
        if line.strip():
            yield Row({"text": line}, path, number)


def documents(path: Path) -> Iterator[Row]:
    """Documents separated by a blank line: {"text": …}."""
    document: list[str] = []
    number = 0
    for number, line in numbered_lines(path):
        if line.strip():
            document.append(line)
        elif document:
            yield Row({"text": "\n".join(document)}, path, number - len(document))
            document = []
    if document:
        yield Row({"text": "\n".join(document)}, path, number - len(document) + 1)


def _sentences(path: Path) -> list[str]:
    """Lines of plain text, or the segments of an SGML file as WMT publishes its tests."""
    if ".sgm" not in path.suffixes:
        return [line for _, line in numbered_lines(path)]
    with open_text(path) as file:
        return [html.unescape(text.strip()) for text in re.findall(r"<seg[^>]*>(.*?)</seg>", file.read(), re.S)]


def parallel(source: str, target: str) -> Reader:
    """A reader of two files line by line: given `train.en`, it reads `train.de` beside it as {"en": …, "de": …}."""

    def read(path: Path) -> Iterator[Row]:
        name = re.sub(r"\.(gz|xz)$", "", path.name)
        if name.endswith(".sgm"):  # newstest2014-deen-src.en.sgm, newstest2014-deen-ref.de.sgm
            other = name.replace(f"src.{source}.", f"ref.{target}.")
        else:
            other = name.removesuffix(f".{source}") + f".{target}"
        partner = find_file(path.parent, other)
        if partner is None:
            raise FileNotFoundError(f"{path} has no partner: expected {path.parent / other} (or .gz, .xz) beside it")
        left, right = _sentences(path), _sentences(partner)
        if len(left) != len(right):
            raise ValueError(f"{path} has {len(left)} lines and {partner} {len(right)}: expected as many in both")
        for number, pair in enumerate(zip(left, right, strict=True), 1):
            yield Row({source: pair[0], target: pair[1]}, path, number)

    return read


def idx(path: Path) -> np.ndarray:
    """The array in an idx-ubyte file (MNIST's format): magic 0x00000803 or …01, sizes, bytes."""
    with open_bytes(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path}: expected an idx-ubyte file (bytes 00 00 08), found {content[:4].hex(' ')}")
    header = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content, ">u4", count=content[3], offset=4).astype(int))
    expected, found = int(np.prod(shape)), len(content) - header
    if found != expected:
        raise ValueError(f"{path}: expected {expected} bytes after the header, found {found}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def find_file(folder: Path, name: str) -> Path | None:
    """`folder/name`, plain or compressed, or None."""
    return next((folder / (name + end) for end in COMPRESSED if (folder / (name + end)).is_file()), None)


def by_suffix(path: Path) -> Iterator[Row]:
    """Rows of a file, read as its name says: .tsv and .csv with a header, .jsonl/.json lines, .txt lines."""
    kinds: dict[str, Reader] = {".tsv": tsv(), ".csv": csv_rows(), ".jsonl": jsonl, ".json": jsonl, ".txt": lines}
    suffix = Path(re.sub(r"\.(gz|xz)$", "", path.name)).suffix
    if suffix not in kinds:
        raise ValueError(f"{path}: expected a name ending in {', '.join(kinds)} (then .gz or .xz), found {suffix!r}")
    return kinds[suffix](path)
