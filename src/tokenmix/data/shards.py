"""Token shards: text that was tokenized once, read in place from memory-mapped files.

A folder made by `tokenmix prepare` holds

    manifest.json          counts, hashes, how the text was split, which tokenizer
    tokenizer/             the tokenizer itself
    shard-00000.bin        the tokens of all its documents, one after another, uint16 or uint32
    shard-00000.docs.npy   where each document ends, in tokens from the start of the shard
    shard-00000.json       this shard's entry of the manifest (a run that was cut off goes on from these)

    shards = TokenShards("wiki")
    shards[7]                                   # the tokens of document 7: a view, nothing is copied
    windows = shards.windows(512)               # the whole text in windows of 512 tokens, across documents
    windows.batch([3, 1, 4])                    # [3, 512]
    windows.document_ids([3, 1, 4])             # [3, 512], 1, 2, … for the documents of each window
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FORMAT = "tokenmix token shards 1"
MANIFEST = "manifest.json"


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TokenShards(Sequence[NDArray[Any]]):
    """The documents of a prepared folder, in order. Opening checks the files' sizes; `verify` checks their hashes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.manifest: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            begun = any(self.folder.glob("shard-*.json"))
            todo = "run the same `tokenmix prepare` again to finish it" if begun else "make one with `tokenmix prepare`"
            raise ValueError(
                f"{self.folder} has no {MANIFEST}, so it is no finished folder of shards; {todo}"
            ) from None
        if self.manifest.get("format") != FORMAT:
            raise ValueError(f"{self.folder}: expected format {FORMAT!r}, found {self.manifest.get('format')!r}")
        self.dtype = np.dtype(self.manifest["dtype"])
        self._names = [shard["name"] for shard in self.manifest["shards"]]
        # Where each shard ends, counted over the whole folder.
        self._token_ends = np.cumsum([shard["tokens"] for shard in self.manifest["shards"]], dtype=np.int64)
        self._document_ends = np.cumsum([shard["documents"] for shard in self.manifest["shards"]], dtype=np.int64)
        for shard in self.manifest["shards"]:
            path = self.folder / f"{shard['name']}.bin"
            size, expected = path.stat().st_size if path.exists() else -1, shard["tokens"] * self.dtype.itemsize
            if size != expected:
                state = f"has {size} bytes, expected {expected}" if size >= 0 else "is missing"
                raise ValueError(f"{path} {state}; run the same `tokenmix prepare` again to make it anew")
        self._map: Callable[[int], NDArray[Any]] = lru_cache(maxsize=None)(self._open_tokens)
        self._ends: Callable[[int], NDArray[np.int64]] = lru_cache(maxsize=None)(self._open_documents)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)  # a worker process opens the files itself

    def _open_tokens(self, shard: int) -> NDArray[Any]:
        path = self.folder / f"{self._names[shard]}.bin"
        if not self.manifest["shards"][shard]["tokens"]:
            return np.empty(0, dtype=self.dtype)  # an empty file cannot be mapped
        # np.memmap objects are slow to slice; the plain array over the same memory is not.
        return np.asarray(np.memmap(path, dtype=self.dtype, mode="r"))

    def _open_documents(self, shard: int) -> NDArray[np.int64]:
        return np.asarray(np.load(self.folder / f"{self._names[shard]}.docs.npy", mmap_mode="r"))

    def __len__(self) -> int:
        """Documents."""
        return int(self._document_ends[-1]) if len(self._names) else 0

    @property
    def num_tokens(self) -> int:
        return int(self._token_ends[-1]) if len(self._names) else 0

    def __getitem__(self, document: Any) -> Any:
        if isinstance(document, slice):
            return [self[number] for number in range(*document.indices(len(self)))]
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        shard = int(np.searchsorted(self._document_ends, number, side="right"))
        local = int(number - (self._document_ends[shard - 1] if shard else 0))
        ends = self._ends(shard)
        return self._map(shard)[(ends[local - 1] if local else 0) : ends[local]]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first, last) for the tokens start … stop − 1 of the whole folder."""
        shard = int(np.searchsorted(self._token_ends, start, side="right"))
        while start < stop:
            base = int(self._token_ends[shard - 1]) if shard else 0
            end = min(stop, int(self._token_ends[shard]))
            if end > start:
                yield shard, start - base, end - base
            start, shard = end, shard + 1

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens ``start`` … ``stop`` − 1 of the whole folder: a view, or a copy where they cross a shard's end."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop} of {self.num_tokens}")
        parts = [self._map(shard)[first:last] for shard, first, last in self._pieces(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def windows(self, length: int, tail: bool = False) -> Windows:
        """The text as consecutive windows of ``length`` tokens; ``tail`` keeps the short last one, padded."""
        return Windows(self, length, tail)

    def verify(self) -> None:
        """Read everything and compare it with the manifest; an error names the first file that differs."""
        for shard in self.manifest["shards"]:
            for suffix, recorded in ((".bin", shard["sha256"]), (".docs.npy", shard["documents_sha256"])):
                path = self.folder / f"{shard['name']}{suffix}"
                if not path.exists() or file_hash(path) != recorded:
                    raise ValueError(
                        f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}; "
                        "run the same `tokenmix prepare` again to make it anew"
                    )

    def tokenizer(self) -> Any:
        """The tokenizer that the text was prepared with."""
        from tokenmix.data.tokenizers import load_tokenizer

        return load_tokenizer(self.folder / "tokenizer")

    def check_tokenizer(self, tokenizer: Any) -> None:
        """An error where the ids of ``tokenizer`` mean other tokens than those in these shards."""
        own = self.tokenizer()
        if own.get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"the shards in {self.folder} hold ids of another tokenizer (of {len(own):,} tokens, the one given has "
                f"{len(tokenizer):,}); take theirs, {self.folder / 'tokenizer'}, or prepare the text with the one given"
            )


class Windows(Sequence[NDArray[Any]]):
    """Windows of ``length`` tokens over the joined documents of a folder."""

    def __init__(self, shards: TokenShards, length: int, tail: bool = False) -> None:
        if length < 1:
            raise ValueError(f"windows of {length} tokens; give a length of 1 or more")
        self.shards, self.length = shards, length
        whole, rest = divmod(shards.num_tokens, length)
        self._count = whole + bool(tail and rest)
        if not self._count:
            raise ValueError(
                f"{shards.folder} holds {shards.num_tokens} tokens, less than one window of {length}; "
                "prepare more text, take shorter windows, or keep the short one with tail=True"
            )
        self.pad_id = shards.manifest["tokenizer"]["pad_id"] or 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = number * self.length
        return self.shards.tokens(start, min(start + self.length, self.shards.num_tokens))

    def batch(self, indices: ArrayLike) -> NDArray[Any]:
        """Tokens [batch, length] of many windows in one copy; a short last window is padded."""
        out = np.full((len(np.asarray(indices)), self.length), self.pad_id, dtype=self.shards.dtype)
        for shard, rows, starts in self._by_shard(indices):
            every = np.lib.stride_tricks.sliding_window_view(self.shards._map(shard), self.length)
            out[rows] = every[starts]
        for row, start, stop in self._crossing(indices):
            out[row, : stop - start] = self.shards.tokens(start, stop)
        return out

    def document_ids(self, indices: ArrayLike) -> NDArray[np.int64]:
        """[batch, length]: 1 for the tokens of the first document in a window, 2 for the second, …; 0 for padding."""
        begins = np.zeros((len(np.asarray(indices)), self.length), dtype=np.int64)
        begins[:, 0] = 1
        for shard, rows, starts in self._by_shard(indices):
            ends = self.shards._ends(shard)
            low = np.searchsorted(ends, starts, side="right")  # the first document end behind each start …
            count = np.searchsorted(ends, starts + self.length - 1, side="right") - low  # … and how many are inside
            which = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)
            begins[np.repeat(rows, count), ends[which] - np.repeat(starts, count)] = 1
        padding = []
        for row, start, stop in self._crossing(indices):
            column = 0
            for shard, first, last in self.shards._pieces(start, stop):
                begins[row, column] = 1  # a shard starts with a document
                ends = self.shards._ends(shard)
                inside = ends[
                    np.searchsorted(ends, first, side="right") : np.searchsorted(ends, last - 1, side="right")
                ]
                begins[row, column + inside - first] = 1
                column += last - first
            padding.append((row, column))
        ids = np.cumsum(begins, axis=1)
        for row, column in padding:
            ids[row, column:] = 0
        return ids

    def _locate(self, indices: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """For each window its first token, the shard of that token, and whether the window lies in that shard alone."""
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"windows {numbers.min()} to {numbers.max()} of {len(self)}")
        starts = numbers * self.length
        shard = np.searchsorted(self.shards._token_ends, starts, side="right")
        return starts, shard, starts + self.length <= self.shards._token_ends[shard]

    def _by_shard(self, indices: ArrayLike) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """(shard, rows, starts within the shard) of the windows that lie in one shard."""
        starts, shards, inside = self._locate(indices)
        for shard in np.unique(shards[inside]):
            rows = np.flatnonzero(inside & (shards == shard))
            yield int(shard), rows, starts[rows] - (self.shards._token_ends[shard - 1] if shard else 0)

    def _crossing(self, indices: ArrayLike) -> Iterator[tuple[int, int, int]]:
        """(row, first token, last token + 1) of the few windows that go over the end of a shard or of the text."""
        starts, _, inside = self._locate(indices)
        for row in np.flatnonzero(~inside):
            yield int(row), int(starts[row]), min(int(starts[row]) + self.length, self.shards.num_tokens)
