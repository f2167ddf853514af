"""The inner function of the Dense Synthesizer: what a token turns into before it meets the learned keys.

Eq. 2 and the variants of appendix A.2. Each returns features q [batch, heads, queries, out_width]; the last linear map of
the paper's F, onto ℓ positions, is the learned keys' doing. A convolution onto ℓ positions is that same map on a window
of features laid side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, init_linear, linear, masked, shift_window
from tokenmix.mixers.site import Site

if TYPE_CHECKING:
    from tokenmix.mixers.attention import Asked


class FeatureMap(Mixer):
    """q = f(X): "relu", "conv", "conv_relu_conv", "bottleneck", "bottleneck_conv" or "glu"."""

    def __init__(self, f: str, width: int | tuple[int, int], bottleneck: int, bias: bool, site: Site) -> None:
        super().__init__()
        self.f, self.site = f, site
        self.widths = width if isinstance(width, tuple) else (width, width)
        self.inner = bottleneck if f.startswith("bottleneck") else site.head_dim
        self.first = linear(site, site.d_model, site.heads * self.inner, bias=bias)
        if f == "glu":
            self.gate = linear(site, site.d_model, site.heads * self.inner, bias=bias)
        if f in ("conv_relu_conv", "bottleneck_conv"):
            self.kernel = nn.Parameter(torch.empty(site.heads, self.widths[0] * self.inner, self.inner))
        self.out_width = self.inner * (self.widths[1] if "conv" in f else 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.first, self.site)
        if self.f == "glu":
            init_linear(self.gate, self.site)
        if hasattr(self, "kernel"):
            nn.init.normal_(self.kernel, std=self.kernel.shape[1] ** -0.5)

    def forward(self, asked: Asked) -> Tensor:  # type: ignore[override]
        first = asked.asking(self.first)
        match self.f:
            case "relu" | "bottleneck":
                return self._heads(torch.relu(first))  # relu(X W₁ + b₁)
            case "glu":
                return self._heads(first * torch.sigmoid(asked.asking(self.gate)))  # XA ⊙ σ(XB)
            case "conv":
                return self._windows(first, self.widths[1], asked, "conv")
            case _:  # convolution, relu, convolution; the second one is left to the keys
                hidden = torch.relu(self._windows(first, self.widths[0], asked, "conv1") @ self.kernel)
                return self._windows(hidden.transpose(1, 2).flatten(-2), self.widths[1], asked, "conv2")

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.site.heads, self.inner)).transpose(1, 2)

    def _windows(self, t: Tensor, taps: int, asked: Asked, name: str) -> Tensor:
        """Each token's window of features side by side: [batch, heads, queries, taps · inner]."""
        wide = shift_window(
            masked(t, asked.mask), taps, causal=self.site.causal, slot=asked.slot, name=asked.owner + name
        )
        length = t.shape[1]
        return torch.cat([self._heads(wide[:, s : s + length]) for s in range(taps)], -1)
