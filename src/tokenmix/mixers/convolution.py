"""Lightweight and dynamic convolution (Wu et al., 2019), the convolutional baselines of the Synthesizer paper's Table 6.

    h = X W_a ⊙ σ(X W_b)                          gated linear unit
    c_t = Σ_s softmax(k)_s ⊙ h_{t+s}              a depthwise kernel, softmaxed over its width
    Y = (c W_p + b_p) W_o

Dynamic convolution predicts the kernel of every token from that token. Encoders look at t − 4 … t + 4, decoders at
t − 8 … t, for width 9.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot, init_linear, linear, masked, shift_window
from tokenmix.mixers.expression import Sublayer, option, register, whole
from tokenmix.mixers.site import Site


@register("lightconv")
class LightConv(Sublayer):
    """Lightweight convolution: one kernel per channel."""

    width: int = option(9, whole(1))

    def make(self, site: Site) -> nn.Module:
        return _Convolution(self.width, False, site)


@register("dynamicconv")
class DynamicConv(Sublayer):
    """Dynamic convolution: every token predicts its own kernel for every channel."""

    width: int = option(9, whole(1))

    def make(self, site: Site) -> nn.Module:
        return _Convolution(self.width, True, site)


class _Convolution(Mixer):
    def __init__(self, width: int, dynamic: bool, site: Site) -> None:
        super().__init__()
        self.width, self.dynamic, self.site = width, dynamic, site
        d = site.d_model
        self.value = linear(site, d, d)
        self.gate = linear(site, d, d)
        if dynamic:
            self.predict = linear(site, d, width * d)
        else:
            self.kernel = nn.Parameter(torch.empty(width, d))
        self.pointwise = linear(site, d, d, bias=True)
        self.out = linear(site, d, d)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.value, self.gate, self.pointwise, self.out):
            init_linear(layer, self.site)
        if self.dynamic:
            init_linear(self.predict, self.site)
        else:
            nn.init.xavier_uniform_(self.kernel)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        h = self.value(x) * torch.sigmoid(self.gate(x))
        kernel = self.predict(h).unflatten(-1, (self.width, -1)) if self.dynamic else self.kernel
        kernel = torch.softmax(kernel, -2)  # over the width
        length = x.shape[1]
        wide = shift_window(masked(h, mask), self.width, causal=self.site.causal, slot=slot)
        mixed = wide[:, :length] * kernel[..., 0, :]
        for s in range(1, self.width):
            mixed = mixed + wide[:, s : s + length] * kernel[..., s, :]
        if record is not None and (slot is None or slot.fresh):
            record["mixing"] = self._matrix(kernel, length)
        return self.out(self.pointwise(mixed))

    def _matrix(self, kernel: Tensor, length: int) -> Tensor:
        """The kernels as a banded matrix [batch or 1, 1, length, length], averaged over channels."""
        mean = kernel.mean(-1)
        mean = mean.expand(1, length, -1) if mean.dim() == 1 else mean
        left = self.width - 1 if self.site.causal else (self.width - 1) // 2
        i = torch.arange(length, device=kernel.device)
        band = mean.new_zeros(mean.shape[0], length, length + self.width - 1)
        band[:, i[:, None], i[:, None] + torch.arange(self.width, device=kernel.device)] = mean
        return band[:, None, :, left : left + length]
