"""T5's relative position bias, and the mixer that is made of nothing else ("BERT + rel pos − attn")."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot
from tokenmix.ops import toeplitz


def bucket(offset: Tensor, buckets: int, distance: int, bidirectional: bool) -> Tensor:
    """The bucket of offset = key − query: half of the buckets exact, the others logarithmic up to `distance`."""
    first = torch.zeros_like(offset)
    if bidirectional:
        buckets //= 2
        first = (offset > 0) * buckets
        offset = offset.abs()
    else:
        offset = (-offset).clamp_min(0)
    exact = buckets // 2
    far = torch.log(offset.clamp_min(1).float() / exact) / math.log(distance / exact) * (buckets - exact)
    return first + torch.where(offset < exact, offset, (exact + far.long()).clamp_max(buckets - 1))


class RelativeBias(Mixer):
    """One learned number per head and bucket of distance."""

    def __init__(self, heads: int, *, causal: bool, buckets: int = 32, distance: int = 128, std: float = 1.0) -> None:
        super().__init__()
        if buckets < 4 or buckets % 2 or distance <= buckets // (2 if causal else 4):
            raise ValueError(
                f"relative positions need an even number of buckets >= 4 and a larger distance; got {buckets}, {distance}"
            )
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.causal, self.buckets, self.distance, self.std = causal, buckets, distance, std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, length: int, slot: Slot | None = None) -> Tensor:  # type: ignore[override]
        """[heads, length, length], or [batch, heads, new, span] for the new tokens of a decoding step."""
        if slot is not None and not slot.fresh:
            offset = torch.arange(slot.span, device=self.weight.device) - slot.positions[..., None]
            return self.weight[self._bucket(offset)].permute(0, 3, 1, 2)
        offset = torch.arange(1 - length, length, device=self.weight.device)
        # one row per offset, spread along diagonals; rows side by side in memory, as attention kernels read them
        return toeplitz(self.weight[self._bucket(offset)].T.contiguous(), length)

    def by_distance(self, length: int) -> Tensor:
        """[heads, length]: the bias of a key that stands 0, 1, 2, … tokens before its query."""
        return self.weight[self._bucket(-torch.arange(length, device=self.weight.device))].T

    def _bucket(self, offset: Tensor) -> Tensor:
        return bucket(offset, self.buckets, self.distance, not self.causal)
