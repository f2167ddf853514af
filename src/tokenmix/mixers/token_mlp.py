"""MLP-Mixer's token mixing (Tolstikhin et al., 2021): a two-layer network along the length, the same for every channel.

    Y = W₂ gelu(W₁ X + b₁) + b₂

In decoders, as in the Remixer paper's Mixer baseline, it sees a causal window of w tokens:
    y_t = Σ_h a_h · gelu(Σ_{s<w} W₁[h, s] · x_{t−s} + b_h) + b
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot, masked, shift_window
from tokenmix.mixers.expression import Sublayer, option, register, whole
from tokenmix.mixers.site import Site
from tokenmix.ops import persist
from tokenmix.ops.window import window_mlp


@register("token_mlp")
class TokenMlp(Sublayer):
    """`hidden`: width of the inner layer; `window`: tokens seen in a causal stack (others mix the whole length)."""

    hidden: int = option(384, whole(1))
    window: int = option(32, whole(1))

    def make(self, site: Site) -> nn.Module:
        return _CausalTokenMlp(self, site) if site.causal else _TokenMlp(self, site)


class _TokenMlp(Mixer):
    limited = True

    def __init__(self, spec: TokenMlp, site: Site) -> None:
        super().__init__()
        n = site.max_length
        self.site = site
        self.w1 = nn.Parameter(torch.empty(spec.hidden, n))
        self.w2 = nn.Parameter(torch.empty(n, spec.hidden))
        self.b1 = nn.Parameter(torch.empty(spec.hidden))
        self.b2 = nn.Parameter(torch.empty(n))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for w in (self.w1, self.w2):
            nn.init.xavier_uniform_(w) if self.site.init == "xavier" else nn.init.normal_(w, std=w.shape[1] ** -0.5)
        nn.init.zeros_(self.b1)
        nn.init.zeros_(self.b2)

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
        w1, w2 = self.w1[:, :length], self.w2[:length]
        if record is not None:
            record["mixing"] = (w2 @ w1)[None, None]  # its linear part
        hidden = nn.functional.gelu(persist(w1, x, mask=mask) + self.b1[:, None])
        return persist(w2, hidden) + self.b2[:length, None]


class _CausalTokenMlp(Mixer):
    def __init__(self, spec: TokenMlp, site: Site) -> None:
        super().__init__()
        self.window = spec.window
        self.w1 = nn.Parameter(torch.empty(spec.hidden, spec.window))  # W₁[h, s], s tokens back
        self.b1 = nn.Parameter(torch.empty(spec.hidden))
        self.a = nn.Parameter(torch.empty(spec.hidden))
        self.b = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.w1, std=self.window**-0.5)
        nn.init.normal_(self.a, std=self.a.shape[0] ** -0.5)
        nn.init.zeros_(self.b1)
        nn.init.zeros_(self.b)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        wide = shift_window(masked(x, mask), self.window, causal=True, slot=slot)
        if record is not None and (slot is None or slot.fresh):
            record["mixing"] = self._matrix(x.shape[1])
        return window_mlp(wide, self.w1, self.b1, self.a) + self.b

    def _matrix(self, length: int) -> Tensor:
        band = torch.zeros(length, length + self.window - 1, device=self.w1.device, dtype=self.w1.dtype)
        i = torch.arange(length, device=self.w1.device)[:, None]
        band[i, i + torch.arange(self.window, device=self.w1.device)] = (self.a @ self.w1).flip(-1)
        return band[None, None, :, self.window - 1 :]
