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
    """

    is_compileable = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: dict[str, Slot] = {}
        self.lengths: Tensor | None = None  #: [batch] tokens remembered of each row
        self.seen = 0  #: columns fed so far, padding included
        self.layers = []

    def begin(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Announce new tokens x [batch, new, …] with their mask; returns their positions [batch, new]."""
        if self.lengths is None:
            self.lengths = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        elif self.lengths.shape[0] != x.shape[0]:
            raise ValueError(f"this cache remembers a batch of {self.lengths.shape[0]}; got {x.shape[0]} rows")
        positions = self.lengths[:, None] + torch.arange(x.shape[1], device=x.device)
        if self.seen + x.shape[1] > self.capacity and int(positions.max()) >= self.capacity:
            raise ValueError(
                f"sequence of {int(positions.max()) + 1} tokens exceeds max_length={self.capacity} of this model; "
                f"stop earlier, or build the model with max_length >= {int(positions.max()) + 1}"
            )
        self.fresh, self.positions = self.seen == 0, positions
        self.counts = None if mask is None else mask.sum(-1)
        return positions

    def slot(self, name: str) -> Slot:
        """The slot of one sublayer, set for the step that has begun."""
        slot = self.slots.setdefault(name, Slot(self.capacity))
        slot.positions, slot.fresh, slot.counts = self.positions, self.fresh, self.counts
        return slot

    def end(self) -> None:
        """The new tokens are remembered."""
        new = self.positions.shape[1]
        assert self.lengths is not None
        self.lengths = self.lengths + (new if self.counts is None else self.counts)
        self.seen += new

    # --- what transformers asks of a cache

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns fed so far."""
        return self.seen

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """The longest sequence it holds."""
        return self.capacity

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] was."""
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, beam_idx.to(self.lengths.device))
        for slot in self.slots.values():
            slot.tensors = {name: t.index_select(0, beam_idx.to(t.device)) for name, t in slot.tensors.items()}

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        if self.lengths is not None:
            self.reorder_cache(torch.arange(self.lengths.shape[0], device=self.lengths.device).repeat_interleave(repeats))

    def __len__(self) -> int:
        return len(self.slots)
