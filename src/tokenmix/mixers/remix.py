"""The Remixer block: a feed-forward network with a persistent mixing memory inside.

X'  = σ_g(X W₁) ⊙ X W₂                         gated linear unit, σ_g = gelu
X_S = softmax(H) X'                            H ∈ ℝ^{ℓ×ℓ} is learned and shared by all examples
X_C = α (X_S ⊙ X') + (1 − α)(X' − X_S)         multiplicative and subtractive composition
Y   = X_C W₃                                   Remixer, Sec. 2.1
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot, glorot_, init_linear, linear, mix_rows
from tokenmix.mixers.expression import Sublayer, between, flag, one_of, option, register, whole
from tokenmix.mixers.rows import Rows
from tokenmix.mixers.site import Site
from tokenmix.ops import Compose, persist, reference, toeplitz
from tokenmix.ops.linear import gelu_linear


@register("remix")
class Remix(Sublayer):
    """Compositional remixing.

    `alpha`: a number in [0, 1], a learned "scalar" or "vector" (through a sigmoid), or a "gate" σ(X'W_g + b).
    `heads`: matrices H; they split the channels. `dropout`: on softmax(H). `compose`: False leaves out X_C and uses X_S
    (ablation 1), "gated" learns a gate between X_C and X_S (ablation 2). `literal`: the printed shapes, all d_model wide,
    with the inner residual Y = X_C W₃ + X'. `toeplitz`: H with one parameter per distance.
    """

    alpha: float | str = option(0.5, between(0, 1) | one_of("scalar", "vector", "gate"))
    heads: int = option(1, whole(1))
    dropout: float = option(0.0, between(0, 1, below=True))
    compose: bool | str = option(True, one_of(True, False, "gated"))
    literal: bool = option(False, flag)
    toeplitz: bool = option(False, flag)

    def make(self, site: Site) -> nn.Module:
        return RemixBlock(self, site)


class RemixBlock(Mixer):
    """See the equations above."""

    by_rows, limited = True, True

    def __init__(self, spec: Remix, site: Site) -> None:
        super().__init__()
        width = site.d_model if spec.literal else site.d_ff
        if width % spec.heads:
            raise ValueError(
                f"remix(heads={spec.heads}): heads split the {width} channels of X', and {spec.heads} does not divide {width}"
            )
        self.spec, self.site = spec, site
        self.w1 = linear(site, site.d_model, width)
        self.w2 = linear(site, site.d_model, width)
        self.w3 = linear(site, width, site.d_model)
        n = site.max_length
        self.h = nn.Parameter(torch.empty(spec.heads, 2 * n - 1) if spec.toeplitz else torch.empty(spec.heads, n, n))
        if spec.compose is False:
            pass  # X_S alone has no α
        elif spec.alpha in ("scalar", "vector"):
            self.alpha = nn.Parameter(torch.empty(1 if spec.alpha == "scalar" else width))
        elif spec.alpha == "gate":
            self.alpha_gate = linear(site, width, width, bias=True)
        if spec.compose == "gated":
            self.gate = linear(site, width, width, bias=True)
        self.dropout = nn.Dropout(site.inner_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in ("w1", "w2", "w3", "alpha_gate", "gate"):
            if hasattr(self, name):
                init_linear(getattr(self, name), self.site)
        if self.spec.toeplitz:
            nn.init.uniform_(self.h, -0.01, 0.01)
        else:
            glorot_(self.h)
        if hasattr(self, "alpha"):
            nn.init.zeros_(self.alpha)  # σ(0) = ½

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
        rows: Rows | None = None,
        **_: Any,
    ) -> Tensor:
        x1 = gelu_linear(self.w1, x, approximate="tanh") * self.w2(x)  # X' = σ_g(X W₁) ⊙ X W₂
        tokens = x1 if rows is None else rows.spread(x1)
        remembered = slot.append("x1", tokens) if slot is not None else tokens
        compose = Compose(self._alpha(tokens)) if self.spec.compose is True else None
        if slot is not None and not slot.fresh:
            xs = mix_rows(self.matrix(slot.span), remembered, slot, softmax=True)
            xc = reference.apply_epilogue(xs, tokens, compose)
        else:
            h = self.matrix(tokens.shape[1])
            if record is not None:
                record["mixing"] = reference.persistent_weights(h, mask, self.site.causal)
            dropout = self.spec.dropout if self.training else 0.0
            xc = persist(h, tokens, softmax=True, mask=mask, causal=self.site.causal, dropout=dropout, epilogue=compose)
        if rows is not None:
            xc = rows.gather(xc)
        if self.spec.compose == "gated":
            g = torch.sigmoid(self.gate(x1))  # between X_C and X_S
            xs, xc = xc, reference.apply_epilogue(xc, x1, Compose(self._alpha(x1)))
            xc = g * xc + (1 - g) * xs
        y = self.w3(self.dropout(xc))
        return y + x1 if self.spec.literal else y

    def matrix(self, length: int) -> Tensor:
        """H [heads, length, length], before its softmax."""
        return toeplitz(self.h, length) if self.spec.toeplitz else self.h[:, :length, :length]

    def _alpha(self, x1: Tensor) -> Any:
        if hasattr(self, "alpha_gate"):
            return torch.sigmoid(self.alpha_gate(x1))
        return torch.sigmoid(self.alpha) if hasattr(self, "alpha") else self.spec.alpha
