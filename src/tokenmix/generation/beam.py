"""Beam search with length penalty, with the rules of Hugging Face's: same candidates, same scores, same moment to stop.

A hypothesis y of n new tokens (the end mark included) is worth  log P(y) / n^λ,  λ the length penalty. Each step extends
every beam, takes the best candidates of an example (twice as many as beams, so that enough go on when some end), moves
those among the first `beams` that end to the finished ones and goes on with the best `beams` of the others. An example is
closed once its best running beam, taken as if it ended now, cannot beat its worst finished hypothesis.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.generation.search import Limits, Search, Stops

DEAD = float("-inf")  # the score of a beam that does not exist


class BeamSearch(Search):
    """`beams` rows per example, those of an example side by side. After `choose`, row i goes on from row `origin[i]`.

    >>> search = BeamSearch(2, limits, torch.device("cpu"), beams=4, length_penalty=0.6)
    >>> search.choose(logits)          # [8, vocabulary]
    >>> cache.change_places(search.origin)
    """

    def __init__(
        self,
        examples: int,
        limits: Limits,
        device: torch.device,
        stops: Stops | None = None,
        *,
        beams: int,
        length_penalty: float,
    ) -> None:
        super().__init__(examples, limits, device, stops)
        self.beams, self.length_penalty = beams, length_penalty
        self.tokens = self.tokens.repeat_interleave(beams)
        self.count = torch.zeros(1, dtype=torch.long, device=device)  #: tokens chosen so far
        self.origin = torch.arange(examples * beams, device=device)
        pads = torch.full((examples, beams, limits.tokens), limits.pad, dtype=torch.long, device=device)
        self.running, self.done = pads, pads.clone()  #: ids [examples, beams, tokens]
        self.scores = torch.full((examples, beams), DEAD, device=device)  #: log P of what runs
        self.scores[:, 0] = 0.0  # at first all beams of an example are one
        self.worth = torch.full((examples, beams), DEAD, device=device)  #: log P / n^λ of what is done, best first
        self.sizes = torch.zeros(examples, beams, dtype=torch.long, device=device)  #: tokens of what is done

    def kind(self) -> tuple[Any, ...]:
        return *super().kind(), self.length_penalty

    def restart(self) -> None:
        super().restart()
        self.origin.copy_(torch.arange(self.origin.shape[0], device=self.origin.device))
        self.running.fill_(self.limits.pad)
        self.done.fill_(self.limits.pad)
        self.worth.fill_(DEAD)
        self.scores.fill_(DEAD)[:, 0] = 0.0
        self.sizes.zero_()

    def choose(self, logits: Tensor) -> None:
        """Take logits [rows, vocabulary] and extend the beams of every example."""
        examples, beams = self.scores.shape
        size = logits.shape[-1]
        wanted = min(max(2, 1 + len(self.limits.marks)) * beams, beams * size)
        # the best candidates of an example are among the best of each of its beams
        logits = logits.float()
        top, ids = logits.topk(min(wanted, size))
        gained = (top - logits.logsumexp(-1, keepdim=True)).view(examples, beams, -1)
        total, place = (self.scores.unsqueeze(-1) + gained).flatten(1).topk(wanted)
        beam, token = place // ids.shape[-1], ids.view(examples, -1).gather(1, place)
        sequences = _take(self.running, beam).index_copy_(2, self.count, token.unsqueeze(-1))
        self.count += 1
        ends = self.is_mark(token) | (self.count >= self.limits.room[self.rows])[:, None]
        if self.stops is not None:
            ends |= self.stops(sequences[..., : self.chosen + 1])

        # the best that go on
        score, onward = total.masked_fill(ends, DEAD).topk(beams)
        self.scores.copy_(score)
        self.running.copy_(_take(sequences, onward))
        self.tokens.copy_(token.gather(1, onward).flatten())
        first = torch.arange(examples, device=beam.device)[:, None] * beams
        self.origin.copy_((beam.gather(1, onward) + first).flatten())

        # the best that are done: only the first candidates may join, and none once the example is closed
        length = self.count.float() ** self.length_penalty
        joins = ends & ~self.ended[:, None]
        joins[:, beams:] = False
        worth = torch.cat([self.worth, (total / length).masked_fill(~joins, DEAD)], 1)
        worth, best = worth.topk(beams)
        self.worth.copy_(worth)
        self.done.copy_(_take(torch.cat([self.done, sequences], 1), best))
        self.sizes.copy_(torch.cat([self.sizes, self.count.expand_as(total)], 1).gather(1, best))
        self.ended |= self.scores[:, 0] / length <= self.worth[:, -1]

    def keep(self, examples: Tensor) -> Tensor:
        self._settle()
        beams = torch.arange(self.beams, device=examples.device)
        stay = (examples[:, None] * self.beams + beams).flatten()
        self.rows, self.ended = self.rows[examples], self.ended[examples]
        first = torch.arange(examples.numel(), device=examples.device).repeat_interleave(self.beams) * self.beams
        self.tokens, self.origin = self.tokens[stay], self.origin[stay] % self.beams + first
        self.running, self.done, self.sizes = self.running[examples], self.done[examples], self.sizes[examples]
        self.scores, self.worth = self.scores[examples], self.worth[examples]
        return stay

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        self._settle()
        return super().result()

    def _settle(self) -> None:
        """Write down the best hypothesis of every example that is still here."""
        self.sequences[self.rows] = self.done[:, 0]
        self.totals[self.rows] = self.worth[:, 0]
        self.lengths[self.rows] = self.sizes[:, 0]


def _take(beams: Tensor, index: Tensor) -> Tensor:
    """beams [examples, beams, tokens] in the order of index [examples, chosen]."""
    return beams.gather(1, index.unsqueeze(-1).expand(-1, -1, beams.shape[-1]))
