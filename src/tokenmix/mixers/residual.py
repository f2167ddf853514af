"""ψ of the Remixer paper: a sublayer with its norm and residual, and a layer of several of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Slot
from tokenmix.mixers.site import Site
from tokenmix.ops.norm import RMSNorm


def make_norm(site: Site) -> nn.Module:
    """RMSNorm as T5's or LayerNorm as BERT's."""
    if site.norm == "rms":
        return RMSNorm(site.d_model, eps=site.norm_eps)
    if site.norm == "layer":
        return nn.LayerNorm(site.d_model, eps=site.norm_eps)
    raise ValueError(f'norm must be "rms" or "layer"; got {site.norm!r}')


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) with `post_norm`; dropout and stochastic depth on f's output."""

    def __init__(self, mixer: nn.Module, site: Site) -> None:
        super().__init__()
        self.norm = make_norm(site)
        self.mixer = mixer
        self.post_norm, self.drop_path = site.post_norm, site.drop_path
        self.dropout = nn.Dropout(site.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, rows: Tensor | None = None, **context: Any) -> Tensor:
        """`rows` are the real tokens of x [batch · length, d_model]: what does not mix leaves out the padding."""
        if rows is not None and not self.mixer.mixes and not self.drop_path:
            flat = x.flatten(0, 1)
            some = flat.index_select(0, rows)
            y = self.dropout(self.mixer(some if self.post_norm else self.norm(some)))
            x = flat.index_add(0, rows, y.to(x.dtype)).view_as(x)
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
        rows: Tensor | None = None,
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


def real_rows(mask: Tensor | None) -> Tensor | None:
    """Which of all batch · length tokens are real, for training that computes nothing for the others.

    None where there is hardly any padding, and where it costs more than it saves: a CPU takes any number of rows, but
    compiled graphs and GPUs want fixed shapes.
    """
    if mask is None or mask.device.type != "cpu" or torch.compiler.is_compiling() or type(mask) is not Tensor:
        return None
    rows = mask.flatten().nonzero().squeeze(1)
    return rows if 0 < len(rows) <= 0.95 * mask.numel() else None
