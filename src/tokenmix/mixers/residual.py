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
        """With `rows`, a mixer that can do so gets the real tokens alone."""
        if rows is not None and self.mixer.by_rows and not self.drop_path:
            some = rows.gather(x)
            y = self.mixer(some if self.post_norm else self.norm(some), mask, rows=rows, **context)
            x = rows.add(x, self.dropout(y))
        else:
            x = x + self._drop_path(self.dropout(self.mixer(x if self.post_norm else self.norm(x), mask, **context)))
        return self.norm(x) if self.post_norm else x

    def _drop_path(self, y: Tensor) -> Tensor:
        if not self.drop_path or not self.training:
            return y
        keep = 1 - self.drop_path
        return y * torch.bernoulli(torch.full((y.shape[0], 1, 1), keep, device=y.device, dtype=y.dtype)) / keep


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
        """Arguments as of a mixer; `slots` and `records` hold one per sublayer; `rows` as `real_rows` gives them."""
        for j, sublayer in enumerate(self):
            slot = None if slots is None else slots[j]
            record = None if records is None else records[j]
            if j == self.cross_at:
                x = sublayer(x, memory_mask, memory=memory, slot=slot, record=record)
            else:
                x = sublayer(x, mask, bias=bias, rows=rows, slot=slot, record=record)
        return x
