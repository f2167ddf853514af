"""The papers' models as one writes them down in plain PyTorch: the peers of `benchmarks.train_cpu`.

Each reads the weights of one of our models, so that both compute the same numbers from the same parameters; no
operator, layer or loss of tokenmix takes part.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmix.mixers.relative import bucket


class PlainSeq2Seq(nn.Module):
    """T5.1.1 with layers `random | geglu`, `random + dot | geglu` or `dot | remix`, after the papers' equations."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> SimpleNamespace:
        body, table = self.model.model, self.model.model.embed.tokens.weight
        real = attention_mask.bool()[:, None, None]
        memory = self.stack(body.encoder, F.embedding(input_ids, table), real)
        shifted = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], 1)
        past = torch.ones(labels.shape[1], labels.shape[1], dtype=torch.bool).tril()[None, None]
        states = self.stack(body.decoder, F.embedding(shifted, table), past, memory, real)
        logits = F.linear(states, self.model.lm_head.weight)
        return SimpleNamespace(loss=F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)

    def stack(
        self, stack: Any, x: Tensor, visible: Tensor, memory: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        places = torch.arange(x.shape[1])
        distance = bucket(places[None] - places[:, None], 32, 128, bidirectional=memory is None)
        bias = F.embedding(distance, stack.relative.weight).permute(2, 0, 1)
        for layer in stack.layers:
            first, *cross, last = layer
            x = x + self.attention(first.mixer, self.norm(first.norm, x), visible, bias)
            if memory is not None:
                x = x + self.attention(cross[0].mixer, self.norm(cross[0].norm, x), real, None, memory)
            x = x + self.channels(last.mixer, self.norm(last.norm, x), visible)
        return self.norm(stack.final_norm, x)

    def norm(self, norm: Any, x: Tensor) -> Tensor:
        return norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.norm_eps))

    def heads(self, layer: Any, x: Tensor) -> Tensor:
        return F.linear(x, layer.weight).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)

    def attention(
        self, mixer: Any, x: Tensor, visible: Tensor | None, bias: Tensor | None, memory: Tensor | None = None
    ) -> Tensor:
        """Y = softmax(α₁ R + α₂ Q Kᵀ + position bias) V"""
        asked = x if memory is None else memory
        shares = []
        for term in mixer.terms:
            if hasattr(term, "matrix"):
                shares.append(term.matrix[:, : x.shape[1], : x.shape[1]].expand(len(x), -1, -1, -1))
            else:
                shares.append(self.heads(term.query, x) @ self.heads(term.key, asked).transpose(-1, -2))
        if len(shares) > 1:
            shares = [a * share for a, share in zip(torch.softmax(mixer.alpha, 0), shares, strict=True)]
        logits = sum(shares) if bias is None else sum(shares) + bias
        weights = torch.softmax(logits.masked_fill(~visible, float("-inf")), -1)
        return F.linear((weights @ self.heads(mixer.value, asked)).transpose(1, 2).flatten(2), mixer.out.weight)

    def channels(self, mixer: Any, x: Tensor, visible: Tensor) -> Tensor:
        """X' = gelu(X W₁) ⊙ X W₂;  in a Remixer X_C = α (X_S ⊙ X') + (1 − α)(X' − X_S) with X_S = softmax(H) X'"""
        inner = F.gelu(F.linear(x, mixer.w1.weight), approximate="tanh") * F.linear(x, mixer.w2.weight)
        if hasattr(mixer, "h"):
            h, alpha = mixer.h[:, : x.shape[1], : x.shape[1]], mixer.spec.alpha
            mixed = torch.softmax(h.masked_fill(~visible[:, 0], float("-inf")), -1) @ inner
            inner = alpha * (mixed * inner) + (1 - alpha) * (inner - mixed)
        return F.linear(inner, mixer.w3.weight)


class PlainGmlp(nn.Module):
    """gMLP for images in timm's formulation: the spatial projection is a linear layer between two transposes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        body = self.model.model
        x = body.embed.projection(pixels).flatten(2).transpose(1, 2)
        for (block,) in body.encoder.layers:
            mixer = block.mixer
            z1, z2 = F.gelu(F.linear(norm(block.norm, x), *both(mixer.u))).chunk(2, -1)
            gate = F.linear(norm(mixer.norm, z2).transpose(-1, -2), *both(mixer)).transpose(-1, -2)
            x = x + F.linear(z1 * gate, *both(mixer.v))
        x = norm(body.encoder.final_norm, x)
        return F.linear(x.mean(1), *both(self.model.classifier))


def norm(layer: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *both(layer), layer.eps)


def both(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias
