"""Writes token shards: every shard is made by one worker on its own, checked by hash, and never half there.

Which documents form a shard depends on the text and on ``shard_size`` alone, so the files are the same for any number
of workers and however often the run was cut off: a shard that is there and whole is kept, any other is made anew.

Workers are threads: the tokenizer is Rust and leaves Python alone for 95% of the time, so about sixteen of them run
side by side, with nothing to start, to copy or to clean up.

    prepare_shards(["wiki.txt.xz"], load_tokenizer("tokenizer"), "wiki", workers=8)
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tokenmix.data.documents import check_files, read_documents
from tokenmix.data.shards import FORMAT, MANIFEST, file_hash

logger = logging.getLogger(__name__)

Record = dict[str, Any]  # a shard's entry of the manifest
_AT_ONCE = 64  # documents given to the tokenizer in one call


def prepare_shards(
    paths: Iterable[str | Path],
    tokenizer: Any,
    out: str | Path,
    *,
    split: str = "blank-line",
    field: str = "text",
    workers: int | None = None,
    shard_size: int = 8_000_000,
    end_mark: bool = True,
    on_shard: Callable[[Record, int], None] | None = None,
) -> Record:
    """Tokenize text files into the folder ``out`` and return the manifest.

    Args:
        tokenizer: a transformers fast tokenizer. Its special tokens are not added, but see ``end_mark``.
        split, field: how a file divides into documents; see `read_documents`.
        workers: threads; as many as there are cores by default.
        shard_size: characters of text in a shard; a shard ends with the document that reaches it.
        end_mark: put the tokenizer's end token (`</s>`, or `[SEP]`) behind every document.
        on_shard: called in order with each finished shard's entry and the bytes read from disk for it.
    """
    files, folder = check_files(paths), Path(out)
    workers = workers or os.cpu_count() or 1
    if shard_size < 1 or workers < 1:
        raise ValueError(f"shard_size={shard_size}, workers={workers}: both must be 1 or more")
    if not files:
        raise ValueError("no text files were given")
    recipe = _recipe(tokenizer, split, field, shard_size, end_mark)
    _refuse_other_recipe(folder, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")

    maker = _ShardMaker(tokenizer.backend_tokenizer, folder, recipe)
    records: list[Record] = []
    with _one_thread_a_call(), ThreadPoolExecutor(workers, "shard") as pool:
        waiting: deque[tuple[Future[Record], int]] = deque()

        def take() -> None:
            future, read = waiting.popleft()
            records.append(future.result())
            if on_shard:
                on_shard(records[-1], read)

        try:
            for number, (documents, read) in enumerate(_portions(files, split, field, shard_size)):
                waiting.append((pool.submit(maker, number, documents), read))
                if len(waiting) > 2 * workers:  # no more text in memory than keeps all workers busy
                    take()
            while waiting:
                take()
        except BaseException:  # Ctrl-C too: the shards in hand are given up, and made by the next run
            maker.stopped = True
            pool.shutdown(cancel_futures=True)
            raise
    if not records:
        raise ValueError(f"no text in {', '.join(map(str, files))}; nothing was written")
    return _finish(folder, records, recipe, files)


def _recipe(tokenizer: Any, split: str, field: str, shard_size: int, end_mark: bool) -> Record:
    """All that decides the content of the shards besides the text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} is no fast tokenizer; load one with load_tokenizer")
    end_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end_mark and end_id is None:
        raise ValueError("this tokenizer has no end token to put behind a document; prepare with end_mark=False")
    return {
        "dtype": "uint16" if len(tokenizer) <= 1 << 16 else "uint32",
        "split": split,
        "field": field if split == "jsonl" else None,
        "shard_size": shard_size,
        "end_id": end_id if end_mark else None,
        "tokenizer": {
            "sha256": hashlib.sha256(backend.to_str().encode()).hexdigest(),
            "vocab_size": len(tokenizer),
            "pad_id": tokenizer.pad_token_id,
        },
    }


def _refuse_other_recipe(folder: Path, recipe: Record) -> None:
    for path in sorted(folder.glob("shard-*.json"))[:1]:
        earlier = json.loads(path.read_text(encoding="utf-8"))["recipe"]
        differs = [name for name in recipe if earlier.get(name) != recipe[name]]
        if differs:
            was = ", ".join(f"{name} {_short(earlier.get(name))} → {_short(recipe[name])}" for name in differs)
            raise ValueError(
                f"{folder} was begun with other settings ({was}); give another --out, or remove that folder first"
            )


def _short(value: Any) -> str:
    return str(value["sha256"])[:8] if isinstance(value, dict) else str(value)


def _portions(files: list[Path], split: str, field: str, shard_size: int) -> Iterator[tuple[list[str], int]]:
    """(documents of one shard, bytes read from disk for them)."""
    read = 0

    def count(amount: int) -> None:
        nonlocal read
        read += amount

    documents: list[str] = []
    size = 0
    for document in read_documents(files, split, field, progress=count):
        documents.append(document)
        size += len(document)
        if size >= shard_size:
            yield documents, read
            documents, size, read = [], 0, 0
    if documents:
        yield documents, read


@contextmanager
def _one_thread_a_call() -> Iterator[None]:
    """Keeps the tokenizer from spreading each call over all cores: the workers are on them already."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before


class _ShardMaker:
    """Writes one shard a call; called by several threads at once."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, recipe: Record) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the caller's own keeps its settings
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.folder, self.recipe, self.stopped = folder, recipe, False

    def __call__(self, number: int, documents: list[str]) -> Record:
        """Write shard ``number``, unless it is there already with the same text and whole."""
        folder, recipe, name = self.folder, self.recipe, f"shard-{number:05d}"
        text = hashlib.sha256()
        for document in documents:
            text.update(len(document).to_bytes(8, "little") + document.encode("utf-8", "surrogatepass"))
        bin_path, docs_path, json_path = (folder / f"{name}{suffix}" for suffix in (".bin", ".docs.npy", ".json"))
        if (kept := _kept(bin_path, docs_path, json_path, text.hexdigest(), recipe)) is not None:
            return kept

        json_path.unlink(missing_ok=True)  # from here until the new entry is there, the shard counts as not made
        ends, total = np.empty(len(documents), dtype=np.int64), 0
        with open(bin_path.with_suffix(".bin.part"), "wb") as file:
            for first in range(0, len(documents), _AT_ONCE):
                if self.stopped:
                    raise CancelledError
                lengths, tokens = self._encode(documents[first : first + _AT_ONCE])
                file.write(tokens.tobytes())
                ends[first : first + len(lengths)] = total + np.cumsum(lengths)
                total += len(tokens)
            _sync(file)
        with open(docs_path.with_suffix(".npy.part"), "wb") as file:
            np.save(file, ends)
            _sync(file)
        os.replace(bin_path.with_suffix(".bin.part"), bin_path)
        os.replace(docs_path.with_suffix(".npy.part"), docs_path)
        record = {
            "name": name,
            "tokens": total,
            "documents": len(documents),
            "characters": sum(map(len, documents)),
            "sha256": file_hash(bin_path),
            "documents_sha256": file_hash(docs_path),
            "text_sha256": text.hexdigest(),
        }
        write_json(json_path, record | {"recipe": recipe})
        return record

    def _encode(self, documents: list[str]) -> tuple[list[int], np.ndarray]:
        """(tokens of each document, all of them one after the other), end marks included."""
        end = [] if self.recipe["end_id"] is None else [self.recipe["end_id"]]
        encoded = [e.ids + end for e in self.tokenizer.encode_batch_fast(documents, add_special_tokens=False)]
        lengths = [len(ids) for ids in encoded]
        return lengths, np.fromiter(chain.from_iterable(encoded), self.recipe["dtype"], sum(lengths))


def _kept(bin_path: Path, docs_path: Path, json_path: Path, text: str, recipe: Record) -> Record | None:
    """The entry of a shard that an earlier run has finished, if its files still are what they were."""
    if not (bin_path.exists() and docs_path.exists() and json_path.exists()):
        return None
    record = json.loads(json_path.read_text(encoding="utf-8"))
    whole = record.pop("recipe") == recipe and record["text_sha256"] == text
    whole = whole and record["sha256"] == file_hash(bin_path) and record["documents_sha256"] == file_hash(docs_path)
    if not whole:
        logger.warning("%s is damaged or its text has changed: it is made anew", bin_path)
    return record if whole else None


def _finish(folder: Path, records: list[Record], recipe: Record, files: list[Path]) -> Record:
    manifest = {"format": FORMAT, **recipe}
    manifest |= {name: sum(record[name] for record in records) for name in ("tokens", "documents", "characters")}
    manifest |= {"sources": [{"name": path.name, "bytes": path.stat().st_size} for path in files], "shards": records}
    write_json(folder / MANIFEST, manifest)
    for path in folder.glob("shard-*"):  # left over from a longer text
        if (match := re.match(r"shard-(\d+)\.", path.name)) and int(match[1]) >= len(records):
            path.unlink()
    return manifest


def write_json(path: Path, value: Any) -> None:
    """Write the whole file or nothing."""
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        _sync(file)
    os.replace(part, path)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
