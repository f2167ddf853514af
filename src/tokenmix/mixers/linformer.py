"""Linformer (Wang et al., 2020): attention over keys and values projected along the length to k places.

softmax(Q (EᵀK)ᵀ / √d) FᵀV        E, F ∈ ℝ^{ℓ×k}, shared by the heads
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot, init_linear, linear, masked
from tokenmix.mixers.expression import Sublayer, option, register, whole
from tokenmix.mixers.site import Site
from tokenmix.ops import attend
from tokenmix.ops.reference import attention_weights


@register("linformer")
class Linformer(Sublayer):
    """Low-rank attention with `k` projected keys; encoders only."""

    k: int = option(32, whole(1))
    causal = False
    acausal = "every projected key blends all positions"

    def make(self, site: Site) -> nn.Module:
        return _Linformer(self, site)


class _Linformer(Mixer):
    limited = True

    def __init__(self, spec: Linformer, site: Site) -> None:
        super().__init__()
        self.site, self.k = site, spec.k
        self.query, self.key, self.value = (linear(site, site.d_model, site.width) for _ in range(3))
        self.out = linear(site, site.width, site.d_model)
        self.e = nn.Parameter(torch.empty(site.max_length, spec.k))
        self.f = nn.Parameter(torch.empty(site.max_length, spec.k))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        d, dk = self.site.d_model, self.site.head_dim
        init_linear(self.query, self.site, std=d**-0.5 if self.site.scale else (d * dk) ** -0.5)
        for layer in (self.key, self.value, self.out):
            init_linear(layer, self.site)
        for projection in (self.e, self.f):
            nn.init.uniform_(projection, -(self.k**-0.5), self.k**-0.5)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        length = x.shape[1]
        q = self._heads(self.query(x)) * (self.site.head_dim**-0.5 if self.site.scale else 1.0)
        k = self._heads(self.e[:length].T @ masked(self.key(x), mask))  # EᵀK
        v = self._heads(self.f[:length].T @ masked(self.value(x), mask))  # FᵀV
        if record is not None:  # what each token draws from each token
            record["mixing"] = attention_weights(q, k, v.shape) @ self.f[:length].T
        dropout = self.site.attention_dropout if self.training else 0.0
        return self.out(attend(q, k, v, dropout=dropout).transpose(1, 2).flatten(-2))

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.site.heads, self.site.head_dim)).transpose(1, 2)
