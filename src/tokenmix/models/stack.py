"""The stack: layers of one expression, each sublayer wrapped in norm and residual, with positions, cache and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tokenmix.devices import product_dtype, readable
from tokenmix.mixers import Expression, Site
from tokenmix.mixers.attention import Attention
from tokenmix.mixers.expression import Mix, Term
from tokenmix.mixers.relative import RelativeBias
from tokenmix.mixers.residual import Residual, ResidualLayer, make_norm
from tokenmix.mixers.rows import Rows, real_rows
from tokenmix.models.cache import MixingCache


@dataclass
class MixingRecord:
    """The mixing matrices of one sublayer, as `return_mixing=True` hands them out."""

    stack: str  #: "encoder" or "decoder"
    layer: int
    sublayer: int
    name: str  #: its expression, e.g. "random + dot", or "cross: dot"
    matrices: dict[str, Tensor] = field(
        default_factory=dict
    )  #: "mixing" [batch or 1, heads, queries, keys], "attention", …


class Stack(nn.Module):
    """`layers` copies of an expression; with `cross`, cross-attention follows the first sublayer of each layer."""

    def __init__(
        self,
        name: str,
        expression: Expression,
        site: Site,
        layers: int,
        *,
        shared_relative: bool = False,
        cross: Expression | None = None,
        cross_site: Site | None = None,
    ) -> None:
        super().__init__()
        self.name, self.site = name, site
        self.labels = [str(part) for part in expression.sublayers]
        if cross is not None:
            self.labels.insert(1, f"cross: {cross}")
        self.layers = nn.ModuleList()
        expression.check_site(site)
        for _ in range(layers):
            parts = [Residual(part.make(site), site) for part in expression.sublayers]
            if cross is not None and cross_site is not None:
                parts.insert(1, Residual(_cross_attention(cross, cross_site), site))
            self.layers.append(ResidualLayer(parts, cross_at=None if cross is None else 1))
        self.relative = None
        if shared_relative and any(isinstance(part, (Term, Mix)) for part in expression.sublayers):
            self.relative = RelativeBias(
                site.heads,
                causal=site.causal,
                buckets=site.relative_buckets,
                distance=site.relative_distance,
                std=0.02 if site.init != "t5" else site.d_model**-0.5,
            )
        self.final_norm = nn.Identity() if site.post_norm else make_norm(site)
        self.dropout = nn.Dropout(site.dropout)
        self.gradient_checkpointing = False
        self.sees_padding = any(getattr(module, "sees_padding", False) for module in self.layers.modules())

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: MixingCache | None = None,
        records: list[MixingRecord] | None = None,
        hidden_states: list[Tensor] | None = None,
        skip_padding: bool = False,
        real: Tensor | None = None,
        rows: Rows | None = None,
    ) -> Tensor:
        """x [batch, length, d_model], right-padded by `mask`; with a cache, x holds the new tokens alone.

        `skip_padding`: nobody reads the output at padding, which need not be computed; `real` [batch, length] says
        what is no padding where `mask` does not, and `rows` where that is known beforehand.
        """
        bias = None
        if self.relative is not None:
            bias = self.relative(x.shape[1], cache.slot(f"{self.name}.relative") if cache is not None else None)
        if not self.training or self.sees_padding or cache is not None or hidden_states is not None:
            rows = None
        elif rows is None and skip_padding:
            rows = real_rows(mask if real is None else real)
        if rows is not None:
            x = rows.gather(x)
        x = self.dropout(_in_compute_dtype(x))
        for i, layer in enumerate(self.layers):
            if hidden_states is not None:
                hidden_states.append(x)
            context: dict[str, Any] = {"bias": bias, "memory": memory, "memory_mask": memory_mask, "rows": rows}
            if cache is not None:
                context["slots"] = [cache.slot(f"{self.name}.{i}.{j}") for j in range(len(self.labels))]
            if records is not None:
                new = [MixingRecord(self.name, i, j, label) for j, label in enumerate(self.labels)]
                context["records"] = [record.matrices for record in new]
                records += new
            if self.gradient_checkpointing and self.training and cache is None and records is None:
                x = checkpoint(layer, x, mask, use_reentrant=False, **context)
            else:
                x = layer(x, mask, **context)
        x = self.final_norm(x)
        if not self.site.post_norm:
            x = self.dropout(x)
        if hidden_states is not None:
            hidden_states.append(x)
        return x if rows is None else rows.spread(x)


def _in_compute_dtype(x: Tensor) -> Tensor:
    """Under autocast the residual stream is kept in the dtype of the products, as T5 trains: half the memory traffic."""
    return x.to(product_dtype(x)) if x.dtype == torch.float32 else x


def _cross_attention(cross: Expression, site: Site) -> Attention:
    if isinstance(cross, Mix):
        return Attention(cross.terms, cross.alpha, site, cross=True)
    if isinstance(cross, Term):
        return Attention((cross,), None, site, cross=True)
    raise ValueError(f"cross={str(cross)!r}: cross-attention is made of attention terms, such as 'dot'")


def right_padded(mask: Tensor) -> tuple[Tensor, Tensor] | None:
    """Row indices that roll left padding to the right, and back; None where no row starts with padding.

    Position 0 is the first real token. Where the question cannot be asked, rows are always rolled.
    """
    if readable(mask) and bool(mask[:, 0].all()):
        return None
    length = mask.shape[1]
    first = mask.long().argmax(-1, keepdim=True)
    place = torch.arange(length, device=mask.device)[None]
    return (place + first) % length, (place - first) % length


def has_holes(mask: Tensor) -> bool:
    """Is there padding between the tokens of a right-padded row? Not asked where `right_padded` cannot ask."""
    return readable(mask) and bool((mask[:, 1:] > mask[:, :-1]).any())


def roll(x: Tensor, index: Tensor) -> Tensor:
    """x [batch, length, …] with each row taken in the order of index [batch, length]."""
    index = index.view(*index.shape, *[1] * (x.dim() - 2)).expand_as(x)
    return torch.gather(x, 1, index)


class Unpacked:
    """Packed documents as rows of their own: positions restart and no document sees another, for every mixer alike."""

    def __init__(self, documents: Tensor) -> None:
        """documents [batch, length]: a number per document, 0 for padding; equal neighbours are one document."""
        real = documents > 0
        starts = real.clone()
        starts[:, 1:] &= documents[:, 1:] != documents[:, :-1]
        row = (starts.flatten().cumsum(0) - 1).clamp_min(0)
        place = torch.arange(documents.numel(), device=documents.device)
        first = torch.where(starts.flatten(), place, -1).cummax(0).values
        self.shape, self.real = documents.shape, real.flatten()
        self.row, self.column = row[self.real], (place - first)[self.real]
        self.rows = int(starts.sum())
        self.length = int(self.column.max()) + 1 if self.column.numel() else 1
        self.mask = torch.zeros(max(self.rows, 1), self.length, dtype=torch.bool, device=documents.device)
        self.mask[self.row, self.column] = True

    def split(self, x: Tensor) -> Tensor:
        """[batch, length, …] → [documents, longest, …]."""
        rows = x.new_zeros(*self.mask.shape, *x.shape[2:])
        rows[self.row, self.column] = x.flatten(0, 1)[self.real]
        return rows

    def join(self, rows: Tensor) -> Tensor:
        """The way back; padding is 0."""
        x = rows.new_zeros(self.real.shape[0], *rows.shape[2:])
        x[self.real] = rows[self.row, self.column]
        return x.view(*self.shape, *rows.shape[2:])
