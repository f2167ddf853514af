"""Where rows come from: a local folder in the official layout, the Hugging Face Hub, or a function that makes them.

A task lists its sources in order; the first that has the wanted split serves it.

>>> cogs = Files("cogs", {"train": "train.tsv"}, read=tsv(("input", "target", "category")))
>>> cogs.looked_for("train", "/data")
'/data/cogs/train.tsv'
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from tokenmix.data.readers import COMPRESSED, Reader, Row, by_suffix, malformed, tsv

__all__ = ["Files", "Hub", "Made", "Row", "Source", "data_folder", "tsv"]

log = logging.getLogger(__name__)
_SWITCHES = threading.RLock()
Adapt = Callable[[Row], Iterable[Row]]


def data_folder(data: str | Path | None = None) -> Path | None:
    """The folder of local data: the argument, else the environment's TOKENMIX_DATA, else none."""
    chosen = data or os.environ.get("TOKENMIX_DATA")
    return Path(chosen).expanduser() if chosen else None


def _plain(path: Path) -> str:
    return str(path.with_suffix("") if path.suffix in (".gz", ".xz") else path)


def _adapted(adapt: Adapt | None, row: Row) -> Iterable[Row]:
    if adapt is None:
        return (row,)
    try:
        return list(adapt(row))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise malformed(row, error) from error


class Source(Protocol):
    """What a task asks of a source."""

    @property
    def splits(self) -> Mapping[str, Any]: ...
    @property
    def note(self) -> str: ...
    def has(self, split: str, data: str | Path | None = None) -> bool: ...
    def where(self, split: str, data: str | Path | None = None) -> str: ...
    def rows(self, split: str, data: str | Path | None = None) -> Iterator[Row]: ...


@dataclass(frozen=True, eq=False)
class Files:
    """Files below `folder` of the data folder (or an absolute folder).

    splits  split → file name without .gz/.xz; `*` matches several; a tuple is read in turn, all must be there
    read    file → rows
    adapt   row → rows with the task's field names, where the files have others
    note    what a table must say about numbers made with these files, e.g. that they are a subset
    """

    folder: str
    splits: Mapping[str, str | tuple[str, ...]]
    read: Reader = by_suffix
    adapt: Adapt | None = None
    note: str = ""

    def _root(self, data: str | Path | None) -> Path | None:
        root = Path("/") if Path(self.folder).is_absolute() else data_folder(data)
        return root / self.folder if root else None

    def paths(self, split: str, data: str | Path | None = None) -> list[Path]:
        """The files of a split; empty unless every one of its patterns is there."""
        root = self._root(data)
        if root is None:
            return []
        patterns = self.splits[split]
        found: list[Path] = []
        for pattern in (patterns,) if isinstance(patterns, str) else patterns:
            there: dict[str, Path] = {}  # by name without .gz, .xz; a plain file comes before a compressed one
            for end in COMPRESSED:
                for path in root.glob(pattern + end) if "*" in pattern else [root / (pattern + end)]:
                    if path.exists():
                        there.setdefault(_plain(path), path)
            if not there:
                return []
            found += [there[name] for name in sorted(there)]
        return found

    def has(self, split: str, data: str | Path | None = None) -> bool:
        return split in self.splits and bool(self.paths(split, data))

    def where(self, split: str, data: str | Path | None = None) -> str:
        return str(self._root(data))

    def looked_for(self, split: str, data: str | Path | None = None) -> str:
        patterns = self.splits[split]
        names = (patterns,) if isinstance(patterns, str) else patterns
        root = self._root(data) or Path("$TOKENMIX_DATA") / self.folder
        return ", ".join(str(root / name) for name in names)

    def rows(self, split: str, data: str | Path | None = None) -> Iterator[Row]:
        for path in self.paths(split, data):
            for row in self.read(path):
                yield from _adapted(self.adapt, row)


@dataclass(frozen=True, eq=False)
class Hub:
    """A dataset of the Hugging Face Hub, by its public name. Code from the Hub is never run."""

    name: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {s: s for s in ("train", "validation", "test")})
    streaming: bool = False
    adapt: Adapt | None = None
    note: str = ""

    def has(self, split: str, data: str | Path | None = None) -> bool:
        return split in self.splits

    def where(self, split: str, data: str | Path | None = None) -> str:
        return f"Hub:{self.name}" + (f" ({self.config})" if self.config else "")

    def rows(self, split: str, data: str | Path | None = None) -> Iterator[Row]:
        dataset = load_from_hub(self.name, self.config, self.splits[split], self.streaming)
        return (row for number, record in enumerate(dataset, 1) for row in self._adapted(record, split, number))

    def indexed(self, split: str) -> Sequence[Row]:
        """Rows by number, each read when asked for (images stay on disk until then)."""
        return _HubRows(self, split, load_from_hub(self.name, self.config, self.splits[split], streaming=False))

    def _adapted(self, record: dict[str, Any], split: str, number: int) -> Iterable[Row]:
        row = Row(record, f"{self.where(split)}, split {self.splits[split]}", number)
        return _adapted(self.adapt, row)


class _HubRows(Sequence[Row]):
    def __init__(self, hub: Hub, split: str, dataset: Any):
        self.hub, self.split, self.dataset = hub, split, dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return next(iter(self.hub._adapted(self.dataset[index], self.split, index + 1)))


def load_from_hub(name: str, config: str | None, split: str, streaming: bool) -> Any:
    """`datasets.load_dataset`; a repository that still holds a loading script is read from its parquet export."""
    from datasets import load_dataset

    log.info("loading %s from the Hugging Face Hub", name)
    try:
        with offline_without_network():
            try:
                return load_dataset(name, config, split=split, streaming=streaming)
            except RuntimeError as error:
                if "scripts are no longer supported" not in str(error):
                    raise
                return load_dataset(name, config, split=split, streaming=streaming, revision="refs/convert/parquet")
    except Exception as error:  # whatever the network or the Hub answered: to the caller the data is not there
        reason = f"{type(error).__name__}: {error}"
        raise FileNotFoundError(f"The Hugging Face Hub did not serve {name!r} ({reason})") from error


@contextmanager
def offline_without_network() -> Iterator[None]:
    """Where the Hub has no address, only its local cache is asked: its client would try again for half a minute.

    Its switches are the whole process's, so that threads take turns.
    """
    import datasets.config
    import huggingface_hub.constants

    places: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    endpoint = huggingface_hub.constants.ENDPOINT
    with _SWITCHES:
        before = [place.HF_HUB_OFFLINE for place in places]
        try:
            if not all(before) and not {"http", "https", "all"} & getproxies().keys():  # a proxy asks for the address
                socket.getaddrinfo(urlsplit(endpoint).hostname, None)
        except (OSError, ValueError) as error:
            log.warning("%s has no address here (%s): only the local cache is read", endpoint, error)
            for place in places:
                place.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            for place, value in zip(places, before, strict=True):
                place.HF_HUB_OFFLINE = value


@dataclass(frozen=True, eq=False)
class Made:
    """Rows that a function makes: split → function without arguments. Nothing to download."""

    splits: Mapping[str, Callable[[], Iterable[dict[str, Any]]]]
    note: str = ""

    def has(self, split: str, data: str | Path | None = None) -> bool:
        return split in self.splits

    def where(self, split: str, data: str | Path | None = None) -> str:
        return "generated"

    def rows(self, split: str, data: str | Path | None = None) -> Iterator[Row]:
        return (Row(fields, f"generated {split}", n) for n, fields in enumerate(self.splits[split](), 1))
