"""Where a mixer is built: the sizes and conventions of the model around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Site:
    """Sizes and conventions that a mixer takes from its surroundings.

    Only `d_model` has no default, so that a layer drops into anyone's model:

    >>> from tokenmix import parse
    >>> layer = parse("dot | remix").build(d_model=256, heads=8, max_length=128)
    """

    d_model: int
    d_ff: int = 0  #: inner width of feed-forward and gated sublayers; 4 · d_model by default
    heads: int = 1
    head_dim: int = 0  #: d_model / heads by default
    max_length: int = 512  #: longest sequence; sizes every parameter that depends on length
    causal: bool = False  #: a token sees only itself and what came before
    bias: bool = False  #: additive biases in linear layers (BERT, ViT, gMLP: yes; T5: no)
    scale: bool = True  #: dot products times 1/√head_dim (T5 folds it into the initialisation of q)
    norm: str = "rms"  #: "rms" or "layer"
    norm_eps: float = 1e-6
    post_norm: bool = False  #: norm(x + f(x)) as BERT, instead of x + f(norm(x))
    dropout: float = 0.0  #: on the output of every sublayer
    inner_dropout: float = 0.0  #: on the activations inside feed-forward sublayers (T5)
    attention_dropout: float = 0.0
    drop_path: float = 0.0  #: stochastic depth: probability of skipping a sublayer, per example
    init: str = "t5"  #: "t5" (fan-in), "bert" (std 0.02) or "xavier" (uniform, as vision models)
    relative: bool = False  #: a relative position bias of its own in every attention sublayer
    relative_buckets: int = 32
    relative_distance: int = 128
    memory_length: int = 0  #: longest memory, for cross-attention

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "max_length"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1; got {value!r}")
        if not self.d_ff:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        if not self.head_dim:
            if self.d_model % self.heads:
                raise ValueError(
                    f"heads={self.heads} does not divide d_model={self.d_model}; choose heads that do, or give head_dim"
                )
            object.__setattr__(self, "head_dim", self.d_model // self.heads)
        for name in ("d_ff", "head_dim"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1; got {value!r}")

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    def but(self, **changes: Any) -> Site:
        """This site with some values changed."""
        return replace(self, **changes)
