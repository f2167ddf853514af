"""timm's gMLP, MLP-Mixer and ViT as plain modules: its names of tensors, the papers' equations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu


class TwoLayers(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(gelu(self.fc1(x)))


class Gate(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(width), nn.Linear(length, length)

    def forward(self, z: Tensor) -> Tensor:
        z1, z2 = z.chunk(2, -1)
        return z1 * self.proj(self.norm(z2).transpose(1, 2)).transpose(1, 2)  # Z₁ ⊙ (W norm(Z₂) + b)


class GatedTwoLayers(nn.Module):
    def __init__(self, width: int, hidden: int, length: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden // 2, width)
        self.gate = Gate(hidden // 2, length)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.gate(gelu(self.fc1(x))))


class GmlpBlock(nn.Module):
    def __init__(self, width: int, hidden: int, length: int) -> None:
        super().__init__()
        self.norm, self.mlp_channels = nn.LayerNorm(width, eps=1e-6), GatedTwoLayers(width, hidden, length)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp_channels(self.norm(x))


class MixerBlock(nn.Module):
    def __init__(self, width: int, hidden: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.mlp_tokens, self.mlp_channels = TwoLayers(length, width // 2), TwoLayers(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class VitBlock(nn.Module):
    def __init__(self, width: int, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn, self.mlp = Attention(width, num_heads), TwoLayers(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels).flatten(2).transpose(1, 2)


class MlpMixer(nn.Module):
    """timm's class of this name holds both gMLP and MLP-Mixer."""

    def __init__(self, block: type, *, width=32, hidden=64, layers=2, image=16, patch=4, channels=3, labels=7) -> None:
        super().__init__()
        self.stem = Patches(channels, width, patch)
        self.blocks = nn.Sequential(*(block(width, hidden, (image // patch) ** 2) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, labels) if labels else nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(pixels))).mean(1))


class VisionTransformer(nn.Module):
    def __init__(self, *, width=32, hidden=64, heads=4, layers=2, image=16, patch=4, channels=3, labels=7) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width))
        self.patch_embed = Patches(channels, width, patch)
        self.blocks = nn.Sequential(*(VitBlock(width, hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, labels) if labels else nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed(pixels)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])
