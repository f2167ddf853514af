"""ψ of the Remixer paper: a sublayer with its norm and residual, and a layer of several of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Slot
from tokenmix.mixers.rows import Rows
from tokenmix.mixers.site import Site
from tokenmix.ops.norm import LayerNorm, RMSNorm


def make_norm(site: Site) -> nn.Module:
    """RMSNorm as T5's or LayerNorm as BERT's."""
    if site.norm == "rms":
        return RMSNorm(site.d_model, eps=site.norm_eps)
    if site.norm == "layer":
        return LayerNorm(site.d_model, eps=site.norm_eps)
    raise ValueError(f'norm must be "rms" or "layer"; got {site.norm!r}')


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) with `post_norm`; dropout and stochastic depth on f's output."""

    def __init__(self, mixer: nn.Module, site: Site) -> None:
        super().__init__()
        self.norm = make_norm(site)
        self.mixer = mixer
        self.post_norm, self.drop_path = site.post_norm, site.drop_path
        self.dropout = nn.Dropout(site.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, rows: Rows | None = None, **context: Any) -> Tensor:
        """With `rows`, x holds the real tokens alone, [tokens, d_model]; a mixer that cannot take them so gets them padded."""
        y = x if self.post_norm else self.norm(x)
        if rows is None:
            y = self.mixer(y, mask, **context)
        elif getattr(self.mixer, "by_rows", False):  # also of modules that are no Mixer
            y = self.mixer(y, mask, rows=rows, **context)
        else:
            y = rows.gather(self.mixer(rows.spread(y), mask, **context))
        x = x + self._drop_path(self.dropout(y), rows)
        return self.norm(x) if self.post_norm else x

    def _drop_path(self, y: Tensor, rows: Rows | None) -> Tensor:
        if not self.drop_path or not self.training:
            return y
        keep = 1 - self.drop_path
        count = y.shape[0] if rows is None else rows.shape[0]
        kept = torch.bernoulli(torch.full((count,), keep, device=y.device, dtype=y.dtype)) / keep
        return y * (kept[:, None, None] if rows is None else kept[rows.examples, None])


class ResidualLayer(nn.ModuleList):
    """Sublayers in sequence, each with its norm and residual. In a decoder with a memory, `cross_at` says which one is
    cross-attention.

    >>> layer = parse("random + dot | remix").build(d_model=64, heads=4, max_length=32)
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(self, sublayers: Iterable[Residual], cross_at: int | None = None) -> None:
        super().__init__(sublayers)
        self.cross_at = cross_at

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        rows: Rows | None = None,
        slots: Sequence[Slot] | None = None,
        records: Sequence[dict[str, Tensor]] | None = None,
    ) -> Tensor:
        """Arguments as of a mixer; `slots` and `records` hold one per sublayer. With `rows`, as `real_rows` gives
        them, x and the output hold the real tokens alone."""
        if memory is not None and self.cross_at is None:
            raise ValueError(
                "this layer has no cross-attention to read the memory with; models of body seq2seq have it"
            )
        for j, sublayer in enumerate(self):
            slot = None if slots is None else slots[j]
            record = None if records is None else records[j]
            if j == self.cross_at:
                x = sublayer(x, memory_mask, memory=memory, rows=rows, slot=slot, record=record)
            else:
                x = sublayer(x, mask, bias=bias, rows=rows, slot=slot, record=record)
        return x
