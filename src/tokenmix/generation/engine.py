"""One decoding step after the other: what runs the model, in what order, and on a GPU as one captured graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tokenmix.generation.beam import BeamSearch
from tokenmix.generation.search import Search
from tokenmix.models.cache import MixingCache
from tokenmix.models.stack import right_padded, roll


class Decoder:
    """A decoder that goes on from what it remembers. Works for every causal mixer, through the model's own modules.

    >>> decoder = Decoder(model, prompt, mask, memory=None, memory_mask=None, capacity=96)
    >>> logits = decoder.start()            # [examples, vocabulary], after the prompt
    >>> logits = decoder.step(tokens)       # [rows, vocabulary], one token further
    """

    def __init__(
        self,
        model: Any,
        prompt: Tensor,
        mask: Tensor | None,
        *,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        capacity: int,
    ) -> None:
        self.model, self.prompt, self.mask = model, prompt, mask
        self.memory, self.memory_mask = memory, memory_mask
        self.cache = MixingCache(capacity, fixed=prompt.is_cuda)

    def start(self, beams: int = 1) -> Tensor:
        """Read the prompt, right-padded; logits [examples · beams, vocabulary] of what follows it."""
        states = self._decode(self.prompt, self.mask)
        last = states[:, -1]
        if self.mask is not None:
            last = states[torch.arange(states.shape[0], device=states.device), self.mask.sum(-1) - 1]
        logits = self.model.score(last)
        if beams > 1:
            self.cache.spread(beams)
            logits = logits.repeat_interleave(beams, 0)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row, [rows]; logits [rows, vocabulary]."""
        return self.model.score(self._decode(tokens[:, None], None)[:, 0])

    def change_places(self, origin: Tensor) -> None:
        """Row i goes on from row origin[i] of the same example."""
        self.cache.change_places(origin)

    def keep(self, rows: Tensor, examples: Tensor) -> None:
        """Go on with some rows alone, which belong to some examples."""
        self.cache.keep(rows, examples)
        if self.memory is not None:
            self.memory = self.memory[examples]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[examples]

    def _decode(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return self.model.model.decode(ids, mask, cache=self.cache, memory=self.memory, memory_mask=self.memory_mask)


def make_decoder(model: Any, input_ids: Tensor, mask: Tensor | None, tokens: int) -> Decoder:
    """The decoder for some inputs: those of the encoder in a seq2seq model, the prompt in a language model."""
    if mask is not None:
        mask = mask.bool()
        if (order := right_padded(mask)) is not None:
            input_ids, mask = roll(input_ids, order[0]), roll(mask, order[0])
        if bool(mask.all()):
            mask = None
    if model.config.body == "seq2seq":
        memory = model.model.encode(input_ids, mask)
        start = input_ids.new_full((input_ids.shape[0], 1), model.config.decoder_start_token_id)
        return Decoder(model, start, None, memory=memory, memory_mask=mask, capacity=tokens)
    capacity = min(model.config.max_length, input_ids.shape[1] + tokens - 1)
    return Decoder(model, input_ids, mask, memory=None, memory_mask=None, capacity=capacity)


def steps(decoder: Decoder, search: Search) -> Iterator[Search]:
    """Run the search to its end, handing it out after every token."""
    with torch.inference_mode():
        search.choose(decoder.start(search.beams))
        search.chosen += 1
    yield search
    while True:
        with torch.inference_mode():
            if search.finished():
                return
            if isinstance(search, BeamSearch):
                decoder.change_places(search.origin)
            if (rows := search.compact()) is not None:
                decoder.keep(rows, rows[:: search.beams] // search.beams)
            search.choose(decoder.step(search.tokens))
            search.chosen += 1
        yield search
