"""What a model remembers between decoding steps: one slot per sublayer, in the shape Hugging Face's `generate` expects."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache

from tokenmix.mixers.base import Slot


class MixingCache(Cache):
    """Static tensors, one slot per sublayer; rows may stand at different positions.

    >>> cache = MixingCache(capacity=128)
    >>> out = model(input_ids=prompt, past_key_values=cache)   # fills it
    >>> out = model(input_ids=next_token, past_key_values=cache)  # goes on

    With `fixed=True` every read covers the whole capacity, so that a step has the same shapes at every position and
    touches the same memory: it can be captured as a CUDA graph.
    """

    is_compileable = False

    def __init__(self, capacity: int, *, fixed: bool = False) -> None:
        self.capacity = capacity
        self.fixed = fixed
        self.slots: dict[str, Slot] = {}
        self.lengths: Tensor | None = None  #: [batch] tokens remembered of each row
        self.source: Tensor | None = None  #: [batch, capacity] the row where a position stands, once rows moved
        self.seen = 0  #: columns fed so far, padding included
        self.positions: Tensor = torch.empty(0)  #: [batch, new] of the tokens being read
        self.counts: Tensor | None = None  #: [batch] how many of them are real; None: all
        self.span, self.fresh = capacity, True
        self.layers = []

    def begin(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Announce new tokens x [batch, new, …] with their mask; returns their positions [batch, new]."""
        if self.lengths is None:
            self.lengths = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        elif self.lengths.shape[0] != x.shape[0]:
            raise ValueError(f"this cache remembers a batch of {self.lengths.shape[0]}; got {x.shape[0]} rows")
        positions = self.lengths[:, None]
        if x.shape[1] > 1:
            positions = positions + torch.arange(x.shape[1], device=x.device)
        if self.seen + x.shape[1] > self.capacity and int(positions.max()) >= self.capacity:
            raise ValueError(
                f"sequence of {int(positions.max()) + 1} tokens exceeds max_length={self.capacity} of this model; "
                f"stop earlier, or build the model with max_length >= {int(positions.max()) + 1}"
            )
        self.fresh, self.positions = self.seen == 0, positions
        self.counts = None if mask is None else mask.sum(-1)
        self.span = self.capacity if self.fixed else min(self.capacity, self.seen + x.shape[1])
        if self.source is not None:  # what is new stands in its own row
            rows = torch.arange(x.shape[0], device=x.device)[:, None].expand_as(positions)
            self.source.scatter_(1, positions.clamp(max=self.capacity - 1), rows)
        return positions

    def slot(self, name: str) -> Slot:
        """The slot of one sublayer, set for the step that has begun."""
        slot = self.slots.setdefault(name, Slot(self.capacity))
        slot.positions, slot.fresh, slot.counts = self.positions, self.fresh, self.counts
        slot.span, slot.source = self.span, self.source
        return slot

    def end(self) -> None:
        """The new tokens are remembered."""
        new = self.positions.shape[1]
        assert self.lengths is not None
        self.lengths += new if self.counts is None else self.counts
        self.seen += new

    def restart(self) -> None:
        """Forget, and keep the memory where it is for the next sequences of the same batch size."""
        self.seen = 0
        if self.lengths is not None:
            self.lengths.zero_()
        if self.source is not None:
            self.source.copy_(torch.arange(self.source.shape[0], device=self.source.device)[:, None])
        for slot in self.slots.values():
            for window in slot.windows.values():
                window.zero_()

    def change_places(self, index: Tensor) -> None:
        """Row i goes on from what row index[i] was, rows staying within their example; nothing but an index moves."""
        if self.lengths is None:
            return
        if self.source is None:
            rows = torch.arange(self.lengths.shape[0], device=self.lengths.device)
            self.source = rows[:, None].repeat(1, self.capacity)
        self.source.copy_(self.source[index])
        self.lengths.copy_(self.lengths[index])
        for slot in self.slots.values():
            for window in slot.windows.values():
                window.copy_(window[index])

    def keep(self, rows: Tensor, examples: Tensor | None = None) -> None:
        """Keep some rows (of the encoder's states, those of `examples`) and copy them together."""
        if self.lengths is None:
            return
        self.lengths = self.lengths[rows]
        for slot in self.slots.values():
            places = torch.arange(self.capacity, device=rows.device)
            past = rows[:, None].expand(-1, self.capacity) if self.source is None else self.source[rows]
            slot.tensors = {name: t[past, places] for name, t in slot.tensors.items()}
            slot.windows = {name: t[rows] for name, t in slot.windows.items()}
            slot.memory = {name: t[rows if examples is None else examples] for name, t in slot.memory.items()}
        self.source = None

    def spread(self, beams: int) -> None:
        """Every row `beams` times; what was made of the encoder's states stays as it is."""
        if self.lengths is not None:
            rows = torch.arange(self.lengths.shape[0], device=self.lengths.device)
            self.keep(rows.repeat_interleave(beams), examples=rows)

    # --- what transformers asks of a cache

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns fed so far."""
        return self.seen

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """The longest sequence it holds."""
        return self.capacity

    def reset(self) -> None:
        """Forget."""
        self.restart()

    def crop(self, max_length: int) -> None:
        """Not possible: the windows of convolutions do not hold what came before."""
        raise ValueError(f"a MixingCache cannot go back to {max_length} tokens; begin a new one")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] was: beams of one example change places."""
        if self.lengths is not None:
            self.change_places(beam_idx.to(self.lengths.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        if self.lengths is not None:
            self.keep(indices.to(self.lengths.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        if self.lengths is not None:
            rows = torch.arange(self.lengths.shape[0], device=self.lengths.device)
            self.keep(rows.repeat_interleave(repeats))

    def __len__(self) -> int:
        return len(self.slots)
