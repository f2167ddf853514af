"""Attention whose logits are a sum of terms: Softmax(α₁S₁(X) + … + α_N S_N(X)) G(X), Synthesizer Eq. 8.

The terms hand in their shares of the logits (queries and keys, learned or not; biases); this module adds them up and calls
one operator: `persist` where no term looks at the input, else `attend`, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot, init_linear, linear, take_rows, untouched
from tokenmix.mixers.expression import Term
from tokenmix.mixers.relative import RelativeBias
from tokenmix.mixers.rows import Rows
from tokenmix.mixers.site import Site
from tokenmix.ops import attend, persist
from tokenmix.ops.attend import attend_packed, crossing
from tokenmix.ops.kernels import usable
from tokenmix.ops.linear import linear as product
from tokenmix.ops.reference import attention_weights


@dataclass
class Logits:
    """A share of the attention logits: q·kᵀ + key + bias + tile (see :func:`tokenmix.ops.attend`)."""

    q: Tensor | None = None  #: [batch or 1, heads, queries, width]
    k: Tensor | None = None  #: [batch or 1, heads, keys, width]
    key: Tensor | None = None  #: [heads, keys]
    bias: Tensor | None = None  #: [heads, queries, keys], or [batch, heads, new, span] in a decoding step
    tile: tuple[Tensor, Tensor] | None = None

    def times(self, alpha: Tensor | None) -> Logits:
        """α times this share; α is folded into the smallest factor."""
        if alpha is None:
            return self
        return Logits(
            q=None if self.q is None else self.q * alpha,
            k=self.k,
            key=None if self.key is None else self.key * alpha,
            bias=None if self.bias is None else self.bias * alpha,
            tile=None if self.tile is None else (self.tile[0] * alpha, self.tile[1]),
        )


@dataclass
class Asked:
    """What a term needs to know: the tokens that ask, the tokens that are asked, and where both stand."""

    x: Tensor  #: [batch, queries, d_model] the tokens that ask
    memory: Tensor  #: [batch, keys, d_model] the tokens that are asked; x itself in self-attention
    queries: int
    keys: int
    slot: Slot | None  #: memory of incremental decoding
    cross: bool = False
    mask: Tensor | None = None  #: [batch, queries] which of the tokens that ask are real
    owner: str = ""  #: whose turn it is, so that two terms of a kind remember apart
    dot: Any = None  #: the (first) dot term of the sum
    query: Tensor | None = None  #: its query [batch, heads, queries, head_dim], which dense(query="dot") reads too
    rows: Rows | None = None  #: places of the tokens that ask, where x holds the real ones alone, [tokens, d_model]

    @property
    def step(self) -> Slot | None:
        """The slot, if x continues a sequence that is remembered there."""
        return None if self.slot is None or self.slot.fresh else self.slot

    def asking(self, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Something made of each token that asks, [batch, queries, …]"""
        return make(self.x) if self.rows is None else self.rows.spread(make(self.x))

    def known(self, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Something made of each token that is asked, [batch, keys, …]"""
        return make(self.memory) if self.cross else self.asking(make)

    def at(self, table: Tensor) -> Tensor:
        """Rows of a table [heads, positions, …] for the tokens that ask; [batch, heads, new, …] in a decoding step."""
        if self.slot is None or (self.slot.fresh and self.slot.positions.shape[1] == self.queries):
            return table[:, : self.queries]
        return take_rows(table, self.slot.positions.view(-1, self.queries))

    def remember(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Something made of the tokens that are asked, [batch, keys, …], with what the slot remembers of it."""
        if self.slot is None:
            return make()
        name = self.owner + name
        if self.cross:  # the memory does not change: computed once
            if name not in self.slot.memory:
                self.slot.memory[name] = make()
            return self.slot.memory[name]
        new = make()
        everything = self.slot.append(name, new)
        return new if self.slot.fresh else everything


class TermModule(Mixer):
    """The module behind a term; `shared` terms do not look at the input, and of some the logits are a `table` alone."""

    shared = False
    table = False

    def logits(self, asked: Asked) -> Logits:
        """This term's share of the logits."""
        raise TypeError(f"{type(self).__name__} has no logits")


class Attention(Mixer):
    """One attention sublayer over one or several terms; `cross=True` asks a memory instead of the tokens themselves."""

    by_rows = True

    def __init__(self, terms: tuple[Term, ...], alpha: str | None, site: Site, *, cross: bool = False) -> None:
        super().__init__()
        self.site, self.rule, self.cross = site, alpha, cross
        names = [term.name for term in terms]
        if names.count("factorized_dense") > 1:
            raise ValueError("a sum holds at most one factorized_dense term")
        if any(getattr(term, "query", "") == "dot" for term in terms) and "dot" not in names:
            raise ValueError('dense(query="dot") reads the query of a dot term; add one: dot + dense(query="dot")')
        self.terms = nn.ModuleList(term.make_term(site) for term in terms)
        self.value = linear(site, site.d_model, site.width)
        self.out = linear(site, site.width, site.d_model)
        if alpha in ("softmax", "sigmoid"):
            self.alpha = nn.Parameter(torch.empty(len(terms) if alpha == "softmax" else 1))
        self.dot = names.index("dot") if "dot" in names else None
        self.relative = None
        if site.relative and not cross:
            self.relative = RelativeBias(
                site.heads,
                causal=site.causal,
                buckets=site.relative_buckets,
                distance=site.relative_distance,
                std=0.02 if site.init != "t5" else site.d_model**-0.5,
            )
        self.persistent = all(term.shared for term in self.terms)
        others = (term for i, term in enumerate(self.terms) if i != self.dot)
        plain = self.dot is not None and alpha not in ("softmax", "sigmoid")
        self.packs = plain and all(term.table and not cross for term in others)  # see `_together`
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.value, self.site)
        init_linear(self.out, self.site)
        if self.rule in ("softmax", "sigmoid"):
            nn.init.zeros_(self.alpha)

    def weights(self) -> list[Tensor | None]:
        """α of each term; None stands for 1."""
        if self.rule == "softmax":
            return list(torch.softmax(self.alpha, -1).unbind())
        if self.rule == "sigmoid":  # (1 − α)·QKᵀ + α·S
            a = torch.sigmoid(self.alpha[0])
            content = 1 if self.dot is None else self.dot
            return [1 - a if i == content else a for i in range(2)]
        return [None] * len(self.terms)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        memory: Tensor | None = None,
        rows: Rows | None = None,
    ) -> Tensor:
        """Self-attention over x; with `memory` (and the memory's `mask`), cross-attention.

        Several rows of x for each row of memory, one after the other, are beams: they ask as so many queries of one row.
        """
        shape = x.shape
        if memory is not None and not self.cross:
            raise ValueError(
                "this layer attends to itself and takes no memory; models of body seq2seq have cross-attention"
            )
        if memory is not None and rows is None and shape[0] > memory.shape[0] > 0:
            x = x.view(memory.shape[0], -1, shape[-1])
        asked = Asked(
            x,
            x if memory is None else memory,
            x.shape[1] if rows is None else rows.shape[1],
            0,
            slot,
            self.cross,
            None if self.cross else mask,
            rows=rows,
        )
        if self._together(asked, bias, record):
            return self._packed(asked, mask, bias).view(shape)
        value = asked.remember("value", lambda: asked.known(self.value))  # G(X)
        asked.keys = value.shape[1]
        step = None if self.cross else asked.step
        if step is not None:
            mask = step.visible()
        causal = self.site.causal and not self.cross and step is None
        dropout = self.site.attention_dropout if self.training else 0.0
        logits = self._logits(asked, bias)
        if record is not None:
            record["mixing"] = self._matrix(logits, value, mask, causal)
        if self.persistent and asked.step is None:  # one matrix serves the whole batch
            assert logits.bias is not None
            mixed = persist(logits.bias, value, softmax=True, mask=mask, causal=causal, dropout=dropout)
        else:
            mixed = attend(
                logits.q,
                logits.k,
                self._heads(value),
                bias=logits.bias,
                key_bias=logits.key,
                tile=logits.tile,
                mask=mask,
                causal=causal,
                lengths=None if rows is None else rows.lengths,
                dropout=dropout,
            )
            mixed = mixed.transpose(1, 2).flatten(-2)
        return self.out(mixed if rows is None else rows.gather(mixed)).view(shape)

    def _together(self, asked: Asked, bias: Tensor | None, record: dict[str, Tensor] | None) -> bool:
        """Are queries, keys and values made by one product, or keys and values of a memory by one?

        It pays where kernels hand its gradient back in one piece, in training.
        """
        if not self.packs or asked.slot is not None or record is not None or not torch.is_grad_enabled():
            return False
        dot: Any = self.terms[self.dot or 0]
        if not usable(asked.x) or not untouched(dot.query, dot.key, self.value):
            return False
        keys, width = asked.memory.shape[-2], self.site.head_dim
        if self.cross:
            dropped = self.training and self.site.attention_dropout > 0
            return asked.rows is None and not dropped and crossing(asked.memory, asked.queries, keys, width)
        biased = bias is not None or self.relative is not None or len(self.terms) > 1  # else other kernels are faster
        return biased and asked.queries >= 16 and width <= 128

    def _packed(self, asked: Asked, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        """The same as `forward` with W_Q, W_K and W_V as one matrix; to a memory, with W_K and W_V as one."""
        dot: Any = self.terms[self.dot or 0]
        layers = [dot.key, self.value] if self.cross else [dot.query, dot.key, self.value]
        weights, biases = [[getattr(layer, name) for layer in layers] for name in ("weight", "bias")]
        if self.site.scale and not self.cross:
            scale = self.site.head_dim**-0.5
            weights[0], biases[0] = weights[0] * scale, None if biases[0] is None else biases[0] * scale
        together = torch.cat(weights), None if biases[0] is None else torch.cat(biases)
        packed = asked.known(lambda x: product(x, *together))
        asked.keys = packed.shape[1]
        mixed = attend_packed(
            packed.unflatten(-1, (len(layers), self.site.heads, self.site.head_dim)),
            dot.asking(asked) if self.cross else None,
            bias=self._logits(asked, bias, without_dot=True).bias,
            mask=mask,
            causal=self.site.causal and not self.cross,
            lengths=None if asked.rows is None else asked.rows.lengths,
            dropout=self.site.attention_dropout if self.training else 0.0,
        )
        mixed = mixed.transpose(1, 2).flatten(-2)
        return self.out(mixed if asked.rows is None else asked.rows.gather(mixed))

    def _logits(self, asked: Asked, bias: Tensor | None, *, without_dot: bool = False) -> Logits:
        """The weighted sum of all terms, as one share."""
        if self.dot is not None and not without_dot:
            asked.dot = self.terms[self.dot]
            asked.query = asked.dot.queries(asked)
        shares: list[Logits] = []
        for i, (term, alpha) in enumerate(zip(self.terms, self.weights(), strict=True)):
            if without_dot and i == self.dot:
                continue
            asked.owner = f"{i}."
            share: Logits = term.logits(asked)  # type: ignore[operator]
            shares.append(share.times(alpha))
        biases = [share.bias for share in shares if share.bias is not None]
        if self.relative is not None:
            biases.append(self.relative(asked.keys, asked.slot))
        if bias is not None:
            biases.append(bias)  # position bias stands outside α
        keys = [share.key for share in shares if share.key is not None]
        products = [(share.q, share.k) for share in shares if share.q is not None and share.k is not None]
        q = k = None
        if self.persistent and products and all(t.shape[0] == 1 for pair in products for t in pair):
            biases += [(q @ k.transpose(-1, -2))[0] for q, k in products]  # learned queries and keys: one matrix
        elif products:
            q, k = (_join([pair[i] for pair in products]) for i in (0, 1))
        return Logits(
            q=q,
            k=k,
            key=_total(keys),
            bias=_total(biases),
            tile=next((share.tile for share in shares if share.tile is not None), None),
        )

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.site.heads, self.site.head_dim)).transpose(1, 2)

    def _matrix(self, logits: Logits, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        return attention_weights(
            logits.q,
            logits.k,
            self._heads(value).shape,
            bias=logits.bias,
            key_bias=logits.key,
            tile=logits.tile,
            mask=mask,
            causal=causal,
        )


def _join(parts: list[Tensor]) -> Tensor:
    """Concatenate along the width; shared parts are spread over the batch."""
    if len(parts) == 1:
        return parts[0]
    batch = next((part.shape[0] for part in parts if part.shape[0] != 1), 1)
    return torch.cat([part.expand(batch, -1, -1, -1) for part in parts], -1)


def _total(parts: list[Tensor]) -> Tensor | None:
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
