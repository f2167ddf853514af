"""Batches: which examples, in which order, padded to which shape. All of it a pure function of (seed, batch number).

So any process makes any batch at any time: data workers need no state, a resumed run starts at the next number, and
every model that is trained with the same seed sees the same batches in the same order.

The stream goes on for ever, through all examples in a new order each epoch. It is cut into pools of 64 batches; within
a pool the examples of a bucket of lengths come together, and the batches of a pool are taken in random order. Every batch
is full, and lengths are padded to a few shapes (`bucket_shapes`), so that a compiled model compiles a few times and never
again. Buckets save padding and cost variety: batches of one length are full of one kind of sentence. With one bucket
batches are drawn at random (`benchmarks/results/batches-cogs-cpu.json` compares).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tokenmix.data.randomness import bits, key
from tokenmix.training.features import IGNORED

Ints = NDArray[np.int64]
POOL = 64  # batches that share a sorting
TAIL = 0.02  # share of the examples that may be set apart for their length
PLACES = ("encoder_tokens", "decoder_tokens")  # tensors that say where a batch's real tokens stand
ROUND = 8  # lengths are multiples of this: matrix units like it, and there are fewer shapes


def round_up(length: int, multiple: int = ROUND) -> int:
    """The next multiple.

    >>> round_up(17)
    24
    """
    return -(-int(length) // multiple) * multiple


def bucket_shapes(sizes: Ints, count: int) -> list[tuple[int, int]]:
    """Shapes (input length, target length), each covering the one before, the last covering all.

    Shape j of ``count`` covers the shortest j/count of the examples, by inputs and targets together. Where the longest
    fiftieth would have its neighbours padded by a third, it has a shape of its own. One shape is one shape: every
    batch then is a random sample of all examples.

    >>> bucket_shapes(np.array([[5, 3], [9, 20], [30, 20], [60, 60]]), count=2)
    [(16, 24), (64, 64)]
    """
    order = np.argsort(sizes.sum(1), kind="stable")
    reach = np.maximum.accumulate(sizes[order], axis=0)  # longest input and target among the shortest so many

    def covering(share: float) -> tuple[int, int]:
        inputs, targets = reach[max(0, math.ceil(round(len(order) * share, 6)) - 1)]
        return round_up(max(1, inputs)), round_up(targets) if targets else 0

    shares = [(j + 1) / count for j in range(count)]
    if count > 1 and sum(covering(1)) >= 4 / 3 * sum(covering(1 - TAIL)):
        shares = sorted({*shares, 1 - TAIL})
    return list(dict.fromkeys(covering(share) for share in shares))


@dataclass(frozen=True)
class Batch:
    """One process's rows of a batch, and what is known of the whole of it."""

    number: int
    tensors: dict[str, Tensor]
    tokens: int  #: real tokens, inputs and targets, of all processes together
    items: int  #: predicted tokens in these rows
    shape: tuple[int, int]

    def pin_memory(self) -> Batch:
        """Called by the loader: page-locked memory, from which copies to a GPU are asynchronous."""
        return Batch(
            self.number, {k: v.pin_memory() for k, v in self.tensors.items()}, self.tokens, self.items, self.shape
        )


class Batches(Dataset):
    """`batches[n]` is batch n of the run, for one of ``world`` processes.

    >>> batches = Batches(examples, batch_size=32, seed=0)
    >>> batches[7].tensors["input_ids"].shape
    torch.Size([32, 16])
    """

    def __init__(
        self,
        examples: Any,
        batch_size: int,
        seed: int = 0,
        *,
        buckets: int = 4,
        exact: bool = False,
        most: int | None = None,
        causal: bool = False,
        places: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1 or batch_size % world:
            raise ValueError(f"batch_size={batch_size} does not divide among {world} processes")
        self.examples, self.batch_size, self.seed, self.rank, self.world = examples, batch_size, seed, rank, world
        self.exact = exact  # pad to the batch's own longest example: less work, more shapes (nothing is compiled)
        self.causal = causal  # labels are the inputs themselves, and the first of a row is not predicted
        self.most = most  # the longest that the model takes: lengths are not rounded beyond it
        self.shapes = list(dict.fromkeys(map(self._held, bucket_shapes(examples.sizes(), buckets))))
        self.pool = max(1, min(POOL, len(examples) // batch_size))  # no example twice in a pool
        self._plan = lru_cache(maxsize=4)(self._make_plan)
        self.room = {shape: self._room(shape) for shape in self.shapes} if places else {}

    def __getstate__(self) -> dict[str, Any]:  # for workers that are spawned
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._plan = lru_cache(maxsize=4)(self._make_plan)

    def _make_plan(self, pool: int) -> tuple[Ints, Ints, Ints]:
        """(indices, epochs, sizes) of a pool's batches, [batches, batch_size(, 2)]."""
        count = self.pool * self.batch_size
        positions = np.arange(pool * count, (pool + 1) * count, dtype=np.int64)
        indices, epochs = self.examples.locate(positions, self.seed)
        sizes = self.examples.sizes(indices)
        bucket = self._bucket(sizes)
        order = np.lexsort((positions, bucket)).reshape(self.pool, self.batch_size)
        order = order[np.argsort(bits(key(self.seed, 1, pool), np.arange(self.pool)), kind="stable")]
        return indices[order], epochs[order], sizes[order]

    def _bucket(self, sizes: Ints) -> Ints:
        """For each example the number of the smallest shape that holds it."""
        bucket = np.full(len(sizes), len(self.shapes) - 1)
        for number, (inputs, targets) in reversed(list(enumerate(self.shapes))):
            bucket[(sizes[:, 0] <= inputs) & (sizes[:, 1] <= targets)] = number
        return bucket

    def _held(self, shape: tuple[int, int]) -> tuple[int, int]:
        return shape if self.most is None else (min(shape[0], self.most), min(shape[1], self.most))

    def shape(self, sizes: Ints) -> tuple[int, int]:
        """The smallest shape that holds examples of these sizes."""
        longest = sizes.max(0)
        if self.exact:
            return self._held((round_up(longest[0]), round_up(longest[1])))
        return next(s for s in [*self.shapes, tuple(longest)] if s[0] >= longest[0] and s[1] >= longest[1])

    def _room(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Real tokens, of inputs and of targets, that a batch of this shape hardly ever exceeds: six deviations above the
        mean. The same for every seed, so that what is compiled for one serves all."""
        sizes = self.examples.sizes()
        mine = sizes[self._bucket(sizes) == self.shapes.index(shape)]
        full = self.batch_size * np.array(shape)
        if not len(mine):
            return int(full[0]), int(full[1])
        most = self.batch_size * mine.mean(0) + 6 * np.sqrt(self.batch_size) * mine.std(0)
        return tuple(min(int(f), round_up(math.ceil(m), 128)) for f, m in zip(full, most))  # type: ignore[return-value]

    def places(self, sizes: Ints, shape: tuple[int, int]) -> dict[str, Tensor]:
        """Where the real tokens of a batch stand, and padding up to a fixed number: `encoder_tokens`, `decoder_tokens`.

        Nothing where there is hardly any padding, and for the rare batch that holds more.
        """
        made: dict[str, Tensor] = {}
        for part, (name, room) in enumerate(zip(PLACES, self.room.get(shape, (0, 0)))):
            if sizes[:, part].sum() > room:
                return {}
            if room <= 0.9 * len(sizes) * shape[part]:
                real = (np.arange(shape[part]) < sizes[:, part, None]).ravel()
                made[name] = torch.from_numpy(np.concatenate([real.nonzero()[0], (~real).nonzero()[0]])[:room])
        return made

    def __getitem__(self, number: int) -> Batch:
        indices, epochs, sizes = (part[number % self.pool] for part in self._plan(number // self.pool))
        shape = self.shape(sizes)
        share = self.batch_size // self.world
        rows = slice(self.rank * share, (self.rank + 1) * share)
        tensors = self.examples.batch(indices[rows], epochs[rows], shape)
        if self.room:
            tensors |= self.places(sizes, shape)
        return Batch(number, tensors, int(sizes.sum()), predicted(tensors, self.causal), shape)

    def loader(self, start: int, workers: int = 0, pin: bool = False) -> Iterator[Batch]:
        """Batches from number ``start`` on, for ever, made ahead by ``workers`` processes."""
        more: dict[str, Any] = {}
        if workers:  # forked, workers share the examples' memory and start at once
            more = {"prefetch_factor": 4, "multiprocessing_context": "fork" if sys.platform == "linux" else None}
        batches = iter(
            DataLoader(self, batch_size=None, sampler=From(start), num_workers=workers, pin_memory=pin, **more)
        )
        return naming_the_dead(batches) if workers else batches

    @property
    def per_epoch(self) -> float:
        """Batches in an epoch."""
        return len(self.examples) / self.batch_size


def naming_the_dead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches of worker processes. Torch names a worker that is killed, except while it hands over a batch."""
    while True:
        try:
            batch = next(batches)
        except (ConnectionError, EOFError, FileNotFoundError, UnpicklingError, RuntimeError) as error:
            cut_off = not isinstance(error, RuntimeError) or "ancdata" in str(error)  # a file handle that never came
            if not cut_off or "DataLoader worker" in str(error):  # told by torch, or by the worker itself
                raise
            raise RuntimeError(
                "a data worker was killed while it handed over a batch; the system's log says why (often, memory ran out)"
            ) from error
        yield batch


class From(Sampler[int]):
    """start, start + 1, …"""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self.start)


def predicted(tensors: dict[str, Tensor], causal: bool = False) -> int:
    """Labels that count towards a token loss (rows, where there are no labels of tokens)."""
    labels = tensors.get("labels")
    if labels is None or labels.dim() < 2 or labels.is_floating_point():
        return len(next(iter(tensors.values())))
    return int((labels[:, int(causal) :] != IGNORED).sum())


def split_rows(tensors: dict[str, Tensor], parts: int) -> list[dict[str, Tensor]]:
    """A batch as micro-batches of (nearly) equal numbers of rows."""
    if parts == 1:
        return [tensors]
    chunks = {name: value.tensor_split(parts) for name, value in tensors.items()}
    return [{name: chunks[name][i] for name in tensors} for i in range(parts) if len(next(iter(chunks.values()))[i])]
