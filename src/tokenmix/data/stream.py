"""An endless shuffled stream of examples, the same for any number of workers and processes, resumable anywhere.

Example n of the stream is a pure function of n: epoch n // size, and within it place n % size of a permutation that is
computed, not stored. So nothing is kept but a number, and starting at n costs nothing.

    examples = Corrupted(shards.windows(objective.window), objective)
    stream = ExampleStream(examples, batch_size=128, seed=0)
    for batch in DataLoader(stream, batch_size=None, num_workers=4): ...

`batch_size` is that of all processes together: with ``world_size=4`` each of the four ranks makes a quarter of every
batch, and the four quarters are what one process alone would make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from tokenmix.data.randomness import key, permute

Indices = NDArray[np.int64]


class ExampleStream(IterableDataset):
    """Batches out of ``source``, epoch after epoch, each epoch in an order of its own.

    Args:
        source: anything with a length and `[i]`; if it has `batch(indices, epochs)`, whole batches are asked for.
        batch_size: examples in a batch, over all processes together.
        seed: of the order.
        shuffle: False reads the source in its own order. A `Mixture` is in a random order of its own always.
        epochs: None goes on for ever.
        rank, world_size: which process this is, and of how many.
        collate: makes a batch of a list of examples, for a source without `batch`.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        collate: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise ValueError(f"batch_size={batch_size} does not divide among {world_size} processes")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size} processes; expected 0 to {world_size - 1}")
        if not len(source):
            raise ValueError("the source has no examples")
        self.source, self.batch_size, self.seed, self.shuffle = source, batch_size, seed, shuffle
        self.epochs, self.rank, self.world_size, self.collate = epochs, rank, world_size, collate
        self.endless = getattr(source, "endless", False)  # a Mixture orders and repeats its examples itself
        self.position = 0  # the next example, counted over all processes

    def locate(self, first: int, count: int) -> tuple[Indices, Indices]:
        """(indices in the source, epochs) of ``count`` examples of the stream from ``first`` on."""
        places = np.arange(first, first + count, dtype=np.int64)
        if self.endless:
            return places, np.zeros_like(places)
        epochs, places = np.divmod(places, len(self.source))
        if self.shuffle and count:
            places = permute(places, len(self.source), key(self.seed, epochs))
        return places, epochs

    def batch(self, first: int, count: int) -> Any:
        """``count`` examples from number ``first`` of the stream on."""
        indices, epochs = self.locate(first, count)
        if hasattr(self.source, "batch"):
            examples = self.source.batch(indices, epochs)
        else:
            examples = [self.source[int(index)] for index in indices]
        return self.collate(examples) if self.collate else examples

    def __iter__(self) -> Iterator[Any]:
        """Batches from ``position`` on. In a DataLoader's worker process, every k-th batch."""
        worker = get_worker_info()
        number, step = (worker.id, worker.num_workers) if worker else (0, 1)
        end = None if self.epochs is None else self.epochs * len(self.source)
        share, start = self.batch_size // self.world_size, self.position
        while end is None or start + number * self.batch_size < end:
            first = start + number * self.batch_size + self.rank * share
            count = share if end is None else max(0, min(share, end - first))
            batch = self.batch(first, count)
            self.position = start + (number + 1) * self.batch_size
            yield batch
            number += step

    def state_dict(self, batches: int | None = None) -> dict[str, int]:
        """Where the stream stands. Behind a DataLoader with workers only the loop knows: give all ``batches`` used."""
        return {"position": self.position if batches is None else batches * self.batch_size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state_dict` was taken. The order has to be the same: another seed is an error."""
        if state["seed"] != self.seed:
            raise ValueError(
                f"the saved stream has seed {state['seed']}, this one {self.seed}; build it with that seed"
            )
        self.position = state["position"]
