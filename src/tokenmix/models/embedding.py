"""From ids or pixels to vectors: token, segment and position embeddings, image patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tokenmix.devices import readable
from tokenmix.models.config import TokenmixConfig
from tokenmix.ops.linear import Linear, linear
from tokenmix.ops.norm import LayerNorm


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """sin and cos of positions at geometrically spaced frequencies, [..., width]  (Vaswani et al., 2017)."""
    half = (width + 1) // 2
    place = torch.arange(half, device=positions.device, dtype=torch.promote_types(dtype, torch.float32))
    rate = torch.exp(place * (-math.log(10000.0) / max(1, half - 1)))
    angle = positions[..., None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)[..., :width].to(dtype)


def token_std(config: TokenmixConfig) -> float:
    """The spread of token embeddings at first; those that are multiplied by √d start at 1/√d."""
    return config.d_model**-0.5 if config.scale_embeddings else 1.0 if config.init == "t5" else 0.02


class Embedding(nn.Module):
    """Token + segment + position embeddings, then norm and projection where the model has them."""

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        self.tokens = nn.Embedding(config.vocab_size, d)
        self.segments = nn.Embedding(config.segments, d) if config.segments else None
        self.positions = nn.Embedding(config.max_length, d) if config.positions == "absolute" else None
        self.norm = LayerNorm(d, eps=config.norm_eps) if config.embedding_norm else nn.Identity()
        self.projection = Linear(d, d) if config.embedding_projection else nn.Identity()

    def reset_parameters(self) -> None:
        """Initial values by the body's convention."""
        nn.init.normal_(self.tokens.weight, std=token_std(self.config))
        for table in (self.segments, self.positions):
            if table is not None:
                nn.init.normal_(table.weight, std=1.0 if self.config.init == "t5" else 0.02)
        if self.config.embedding_norm:
            nn.init.ones_(self.norm.weight)
            nn.init.zeros_(self.norm.bias)
        if self.config.embedding_projection:
            nn.init.normal_(self.projection.weight, std=0.02)
            nn.init.zeros_(self.projection.bias)

    def forward(
        self, ids: Tensor | None, vectors: Tensor | None, segments: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        """ids (or ready vectors), segments and positions, each [batch, length]; positions None means 0, 1, 2, …"""
        if ids is not None:
            self._check(ids, self.config.vocab_size, "token id", "vocab_size")
            x = self.tokens(ids)
        else:
            assert vectors is not None
            x = vectors
        if self.config.scale_embeddings:
            x = x * self.config.d_model**0.5
        if self.segments is not None:
            if segments is None:
                x = x + self.segments.weight[0]
            else:
                self._check(segments, self.config.segments, "segment id", "segments")
                x = x + self.segments(segments)
        if self.positions is not None:
            x = x + (self.positions.weight[: x.shape[1]] if positions is None else self.positions(positions))
        elif self.config.positions == "sinusoidal":
            place = torch.arange(x.shape[1], device=x.device) if positions is None else positions
            x = x + sinusoids(place, x.shape[-1], x.dtype)
        return self.projection(self.norm(x))

    def together(self, *ids: Tensor) -> list[Tensor]:
        """Token vectors of several batches by one look-up: the table's gradient, as large as the table, is made once."""
        row = torch.cat([part.flatten() for part in ids])
        self._check(row, self.config.vocab_size, "token id", "vocab_size")
        vectors = self.tokens(row)
        parts = vectors.split([part.numel() for part in ids])
        return [vector.view(*part.shape, vector.shape[-1]) for part, vector in zip(ids, parts, strict=True)]

    @staticmethod
    def _check(ids: Tensor, size: int, what: str, name: str) -> None:
        """A clear error on the CPU; a GPU reports it by itself, later and less clearly."""
        if ids.device.type != "cpu" or not readable(ids) or type(ids) is not Tensor or ids.numel() == 0:
            return
        low, high = (int(v) for v in ids.aminmax())
        if low < 0 or high >= size:
            raise ValueError(
                f"{what} {low if low < 0 else high} is outside 0 … {size - 1} ({name}={size} of this model)"
            )


class Patches(nn.Module):
    """An image as a sequence of projected patches; with `pool="cls"`, a learned token stands before them."""

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__()
        self.config = config
        self.projection = nn.Conv2d(config.channels, config.d_model, config.patch_size, stride=config.patch_size)
        self.cls = nn.Parameter(torch.empty(1, 1, config.d_model)) if config.pool == "cls" else None
        self.positions = (
            nn.Parameter(torch.empty(1, config.max_length, config.d_model)) if config.positions == "absolute" else None
        )

    def reset_parameters(self) -> None:
        """Initial values: fan-in for the patches, small for the rest."""
        fan_in = self.config.channels * self.config.patch_size**2
        nn.init.trunc_normal_(self.projection.weight, std=fan_in**-0.5)
        nn.init.zeros_(self.projection.bias)
        for table in (self.cls, self.positions):
            if table is not None:
                nn.init.trunc_normal_(table, std=0.02)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [batch, channels, height, width] → [batch, patches, d_model]."""
        c = self.config
        if pixels.dim() != 4 or tuple(pixels.shape[1:]) != (c.channels, c.image_size, c.image_size):
            raise ValueError(
                f"pixel_values must be [batch, {c.channels}, {c.image_size}, {c.image_size}] for this model; "
                f"got {list(pixels.shape)}: resize the images, or build the model with another image_size or channels"
            )
        # a convolution whose windows do not overlap is one product: [batch, n · n, channels · p · p]
        n, p = c.image_size // c.patch_size, c.patch_size
        windows = pixels.unflatten(3, (n, p)).unflatten(2, (n, p)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x = linear(windows, self.projection.weight.flatten(1), self.projection.bias)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        return x if self.positions is None else x + self.positions
