"""FNet's mixer (Lee-Thorp et al., 2021): the real part of a two-dimensional Fourier transform, over tokens and channels.

Y = Re(F_length(F_channels(X)))
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot
from tokenmix.mixers.expression import Sublayer, one_of, option, register
from tokenmix.mixers.site import Site


@register("fourier")
class Fourier(Sublayer):
    """Fourier mixing; encoders only. `padding`: "mask" transforms each example at its own real length, "include" the
    whole length, padding and all, as Hugging Face's FNet does."""

    padding: str = option("mask", one_of("mask", "include"))
    causal = False
    acausal = "every output is a sum over all positions"

    def make(self, site: Site) -> nn.Module:
        return _Fourier(self, site)


class _Fourier(Mixer):
    def __init__(self, spec: Fourier, site: Site) -> None:
        super().__init__()
        self.sees_padding = spec.padding == "include"

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        if x.numel() == 0:
            return x
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if mask is None or self.sees_padding:
            if record is not None:
                record["mixing"] = self._basis(torch.ones(1, x.shape[1], device=x.device, dtype=torch.bool), wide)[0][
                    :, None
                ]
            return torch.fft.fftn(wide, dim=(-1, -2)).real.to(x.dtype)
        spectrum = torch.fft.fft(wide, dim=-1)  # F_channels
        cosine, sine = self._basis(mask.bool(), wide)
        if record is not None:
            record["mixing"] = cosine[:, None]
        # Re((cos − i sin)(a + i b)) = cos·a + sin·b
        return (cosine @ spectrum.real + sine @ spectrum.imag).to(x.dtype)

    @staticmethod
    def _basis(mask: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of 2π i j / n for the n real tokens of each example, [batch, length, length]; 0 at padding."""
        n = mask.sum(-1).clamp_min(1)[:, None, None]
        place = (mask.cumsum(-1) - 1).clamp_min(0)
        real = (mask[:, :, None] & mask[:, None, :]).to(like.dtype)
        angle = (place[:, :, None] * place[:, None, :] % n).to(like.dtype) * (2 * math.pi / n.to(like.dtype))
        return torch.cos(angle) * real, torch.sin(angle) * real
