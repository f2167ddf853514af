"""ψ of the Remixer paper: a sublayer with its norm and residual, and a layer of several of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot
from tokenmix.mixers.expression import Expression
from tokenmix.mixers.site import Site


def make_norm(site: Site) -> nn.Module:
    """RMSNorm as T5's or LayerNorm as BERT's."""
    if site.norm == "rms":
        return nn.RMSNorm(site.d_model, eps=site.norm_eps)
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

    def forward(self, x: Tensor, mask: Tensor | None = None, **context: Any) -> Tensor:
        if self.post_norm:
            return self.norm(x + self._drop_path(self.dropout(self.mixer(x, mask, **context))))
        return x + self._drop_path(self.dropout(self.mixer(self.norm(x), mask, **context)))

    def _drop_path(self, y: Tensor) -> Tensor:
        if not self.drop_path or not self.training:
            return y
        keep = 1 - self.drop_path
        return y * torch.bernoulli(torch.full((y.shape[0], 1, 1), keep, device=y.device, dtype=y.dtype)) / keep


class ResidualLayer(Mixer):
    """The sublayers of an expression in sequence, each wrapped in norm and residual."""

    def __init__(self, expression: Expression, site: Site) -> None:
        super().__init__()
        self.expression = str(expression)
        self.sublayers = nn.ModuleList(Residual(part.build(site), site) for part in expression.sublayers)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
    ) -> Tensor:
        for sublayer in self.sublayers:
            x = sublayer(x, mask, bias=bias, record=record)
        return x
