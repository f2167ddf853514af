"""Choosing tokens one after the other: greedy search and sampling.

A search holds what has been chosen so far in tensors of fixed shape and changes them in place, without asking the device
for a value, so that a model's step and the choice after it can be captured together as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmix.ops.kernels import usable

Stops = Callable[[Tensor], Tensor]  #: generated ids [..., tokens] → [...] True where a stop string has appeared


@dataclass(frozen=True)
class Limits:
    """When a row ends: at an end mark, or after so many tokens."""

    tokens: int  #: at most this many new tokens in any row
    room: Tensor  #: [examples] how many new tokens each example has room for
    marks: tuple[int, ...]  #: ids that end a row; may be empty
    pad: int  #: what stands after the end


class StopStrings:
    """Has one of some texts appeared among the generated tokens? Asked of the host, after every token."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self.reach = max(len(text.encode()) for text in texts) + 1  # a token is at least a byte of text

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [..., tokens] → [...]: the text of the last tokens holds a stop string."""
        tails = ids[..., -self.reach :].flatten(0, -2).tolist()
        decoded = self.tokenizer.batch_decode(tails, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        found = [any(stop in text for stop in self.texts) for text in decoded]
        return torch.tensor(found, device=ids.device).view(ids.shape[:-1])


class Search:
    """Greedy search: the likeliest token, again and again. One row per example.

    >>> search = Search(examples=2, limits=limits, device=torch.device("cpu"))
    >>> search.choose(logits)          # [2, vocabulary]; afterwards search.tokens holds what to feed next
    """

    beams = 1

    def __init__(
        self, examples: int, limits: Limits, device: torch.device, stops: Stops | None = None, *, scored: bool = True
    ) -> None:
        self.limits, self.stops, self.scored = limits, stops, scored
        self.marks = torch.tensor(limits.marks, dtype=torch.long, device=device)
        self.rows = torch.arange(examples, device=device)  #: which example each row belongs to
        self.tokens = torch.zeros(examples, dtype=torch.long, device=device)  #: chosen last
        self.count = torch.zeros(examples, dtype=torch.long, device=device)  #: tokens chosen so far in each row
        self.chosen = 0  #: the same number, known to the host
        self.sequences = torch.full((examples, limits.tokens), limits.pad, dtype=torch.long, device=device)
        self.totals = torch.zeros(examples, dtype=torch.float32, device=device)  #: log-probability of what was chosen
        self.ended = torch.zeros(examples, dtype=torch.bool, device=device)
        self.lengths = torch.zeros(
            examples, dtype=torch.long, device=device
        )  #: tokens of each result, end mark included

    def kind(self) -> tuple[Any, ...]:
        """What a captured graph depends on, apart from shapes and addresses."""
        limits = self.limits
        return type(self), limits.tokens, limits.marks, limits.pad, self.beams, self.scored, self.capturable

    def restart(self) -> None:
        """Begin again in the same memory."""
        self.chosen = 0
        for state in (self.count, self.totals, self.ended, self.lengths):
            state.zero_()
        self.sequences.fill_(self.limits.pad)

    def take_over(self, other: Search) -> None:
        """Begin again in the same memory with what is asked of another search of this kind."""
        self.restart()
        self.limits.room.copy_(other.limits.room)
        self.stops = other.stops

    @property
    def capturable(self) -> bool:
        """Can `choose` run without the host?"""
        return self.stops is None

    def choose(self, logits: Tensor) -> None:
        """Take logits [rows, vocabulary] and choose a token for every row that has not ended."""
        if type(self) is Search and not self.scored and self.stops is None and usable(logits):
            from tokenmix.generation import kernels

            room, marks, pad = self.limits.room, self.marks, self.limits.pad
            state = (self.rows, self.tokens, self.count, room, self.ended, self.sequences, self.lengths)
            kernels.choose(logits, *state, marks, pad)
            return
        tokens, ended = self.pick(logits), self.ended
        if self.scored:
            logits = logits.float()
            gained = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
            self.totals[self.rows] += gained.masked_fill(ended, 0.0)
        self.tokens.copy_(tokens.masked_fill(ended, self.limits.pad))
        self.lengths[self.rows] += ~ended
        self.sequences[self.rows, self.count] = self.tokens
        self.count += 1
        ended |= self.is_mark(tokens) | (self.count >= self.limits.room[self.rows])
        if self.stops is not None:
            ended |= self.stops(self.sequences[self.rows, : self.chosen + 1])

    def is_mark(self, tokens: Tensor) -> Tensor:
        """Which tokens are end marks."""
        return (tokens.unsqueeze(-1) == self.marks).any(-1)

    def pick(self, logits: Tensor) -> Tensor:
        """The token of each row, [rows]."""
        return logits.argmax(-1)

    def finished(self) -> bool:
        """Have all rows ended? Waits for the device."""
        return self.chosen >= self.limits.tokens or bool(self.ended.all())

    def compact(self) -> Tensor | None:
        """Drop examples that have ended, where that saves a quarter of the work; returns the rows that stay, or None."""
        stay = (~self.ended).nonzero()[:, 0]
        if stay.numel() == 0 or 4 * stay.numel() > 3 * self.rows.numel():
            return None
        return self.keep(stay)

    def keep(self, examples: Tensor) -> Tensor:
        """Go on with some of the present examples alone; returns their rows."""
        self.rows, self.count = self.rows[examples], self.count[examples]
        self.tokens, self.ended = self.tokens[examples], self.ended[examples]
        return examples

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Generated ids [examples, longest], their scores [examples] and how many tokens they have [examples]."""
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return self.sequences[:, :longest], self.totals, self.lengths


class Sampling(Search):
    """Draw each token from the distribution, sharpened by `temperature` and cut to the `top_k` likeliest tokens and to
    the fewest that hold `top_p` of the probability. The score is that under the model's own distribution."""

    def __init__(
        self,
        examples: int,
        limits: Limits,
        device: torch.device,
        stops: Stops | None = None,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        scored: bool = True,
    ) -> None:
        super().__init__(examples, limits, device, stops, scored=scored)
        self.temperature, self.top_k, self.top_p, self.generator = temperature, top_k, top_p, generator

    @property
    def capturable(self) -> bool:
        return False  # the state of a random generator belongs to the host

    def take_over(self, other: Search) -> None:
        super().take_over(other)
        assert isinstance(other, Sampling)
        self.temperature, self.top_k, self.top_p, self.generator = (
            other.temperature,
            other.top_k,
            other.top_p,
            other.generator,
        )

    def pick(self, logits: Tensor) -> Tensor:
        logits = logits.masked_fill(self.ended[:, None], 0.0)  # rows that have ended may hold anything
        return torch.multinomial(self.distribution(logits), 1, generator=self.generator)[:, 0]

    def distribution(self, logits: Tensor) -> Tensor:
        """What is drawn from: probabilities [rows, vocabulary]."""
        logits = logits.float() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p < 1.0:
            ascending, order = logits.sort(-1)
            tail = torch.softmax(ascending, -1).cumsum(-1) <= 1 - self.top_p
            tail[:, -1] = False  # the likeliest token always stays
            logits = logits.masked_fill(torch.zeros_like(tail).scatter(1, order, tail), float("-inf"))
        return torch.softmax(logits, -1)
