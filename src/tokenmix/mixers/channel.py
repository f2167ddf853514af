"""Sublayers that look at one token at a time: the feed-forward networks, and the bag of words that mixes nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tokenmix.mixers.base import ACTIVATIONS, Mixer, Slot, init_linear, linear, masked, shift_window, untouched
from tokenmix.mixers.expression import Sublayer, one_of, option, register, whole
from tokenmix.mixers.site import Site
from tokenmix.ops.geglu import fits_geglu, geglu
from tokenmix.ops.linear import gelu_linear


class Channel(Sublayer):
    """A sublayer that does not mix tokens."""

    mixes = False


@register("mlp")
class Mlp(Channel):
    """activation(X W₁ + b₁) W₂ + b₂, the feed-forward network of Transformer, BERT and ViT."""

    activation: str = option("gelu", one_of(*ACTIVATIONS))

    def make(self, site: Site) -> nn.Module:
        return _Mlp(self, site)


class _Mlp(Mixer):
    by_rows = True

    def __init__(self, spec: Mlp, site: Site) -> None:
        super().__init__()
        self.site, self.activation = site, ACTIVATIONS[spec.activation]
        self.wi = linear(site, site.d_model, site.d_ff)
        self.wo = linear(site, site.d_ff, site.d_model)
        self.dropout = nn.Dropout(site.inner_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.wi, self.site)
        init_linear(self.wo, self.site)

    def forward(self, x: Tensor, mask: Tensor | None = None, **_: Any) -> Tensor:
        return self.wo(self.dropout(self.activation(self.wi(x))))


@register("geglu")
class Geglu(Channel):
    """(gelu(X W₁) ⊙ X W₂) W₃, the feed-forward network of T5.1.1 (gelu in its tanh form, as there)."""

    def make(self, site: Site) -> nn.Module:
        return _Geglu(site)


class _Geglu(Mixer):
    by_rows = True

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.w1 = linear(site, site.d_model, site.d_ff)
        self.w2 = linear(site, site.d_model, site.d_ff)
        self.w3 = linear(site, site.d_ff, site.d_model)
        self.dropout = nn.Dropout(site.inner_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.w1, self.w2, self.w3):
            init_linear(layer, self.site)

    def forward(self, x: Tensor, mask: Tensor | None = None, **_: Any) -> Tensor:
        if self._whole() and fits_geglu(x, self.w1.weight):
            return geglu(x, self.w1.weight, self.w2.weight, self.w3.weight)
        if torch.compiler.is_compiling() and torch.is_grad_enabled():
            # not kept for the way back, where one kernel reads both factors anyway: a tenth of a T5's memory
            gated = checkpoint(_gated, self.w1(x), self.w2(x), use_reentrant=False, preserve_rng_state=False)
        else:
            gated = gelu_linear(self.w1, x, approximate="tanh") * self.w2(x)
        return self.w3(self.dropout(gated))

    def _whole(self) -> bool:
        """Is the sublayer the formula alone: no biases, no dropout, nothing that a user put in between?"""
        drops = type(self.dropout) is not nn.Dropout or (self.dropout.training and self.dropout.p > 0)
        return not drops and untouched(self.w1, self.w2, self.w3) and self.w1.bias is None


def _gated(gate: Tensor, value: Tensor) -> Tensor:
    return nn.functional.gelu(gate, approximate="tanh") * value


@register("conv_relu")
class ConvRelu(Sublayer):
    """relu(conv(X)) W₂: the feed-forward network of the Synthesizer paper's language models; conv spans `width` tokens."""

    width: int = option(3, whole(1))

    def make(self, site: Site) -> nn.Module:
        return _ConvRelu(self, site)


class _ConvRelu(Mixer):
    def __init__(self, spec: ConvRelu, site: Site) -> None:
        super().__init__()
        self.site, self.width = site, spec.width
        self.conv = linear(site, spec.width * site.d_model, site.d_ff)  # a convolution is a linear map of the window
        self.out = linear(site, site.d_ff, site.d_model)
        self.dropout = nn.Dropout(site.inner_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.conv, self.site)
        init_linear(self.out, self.site)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        wide = shift_window(masked(x, mask), self.width, causal=self.site.causal, slot=slot)
        window = torch.cat([wide[:, s : s + x.shape[1]] for s in range(self.width)], -1)
        return self.out(self.dropout(torch.relu(self.conv(window))))


@register("bag_of_words")
class BagOfWords(Channel):
    """No mixing at all: contributes nothing. `bag_of_words | mlp` is the CBoW baseline, said out loud."""

    def make(self, site: Site) -> nn.Module:
        return _BagOfWords()


class _BagOfWords(Mixer):
    by_rows = True

    def forward(self, x: Tensor, mask: Tensor | None = None, **_: Any) -> Tensor:
        return x * 0.0
