"""The gMLP block with its Spatial Gating Unit, and aMLP's tiny attention.

Z = gelu(X U)
s(Z) = Z₁ ⊙ (W norm(Z₂) + b)          split gate; W ≈ 0 and b = 1 at the start, so that s(Z) ≈ Z₁
Y = s(Z) V                            gMLP, Eq. 1–4
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.base import Mixer, Slot, init_linear, linear, mix_rows
from tokenmix.mixers.expression import Sublayer, flag, one_of, option, register, whole
from tokenmix.mixers.rows import Rows
from tokenmix.mixers.site import Site
from tokenmix.ops import Gate, attend, persist, persist_toeplitz, reference, toeplitz
from tokenmix.ops.linear import gelu_linear
from tokenmix.ops.norm import LayerNorm, gelu_norm


@register("gmlp")
class Gmlp(Sublayer):
    """The whole gMLP block.

    `gate`: the four s(Z) of Table 3: "split" Z₁ ⊙ f(Z₂), "multiplicative" Z ⊙ f(Z), "additive" Z + f(Z), "linear" f(Z).
    `toeplitz`: W with one parameter per distance. `attention`: width of aMLP's tiny attention, 0 for none.
    `padding`: "mask" keeps padding out of W·Z; "include" lets it in, as the paper does.
    """

    gate: str = option("split", one_of("split", "multiplicative", "additive", "linear"))
    toeplitz: bool = option(False, flag)
    attention: int = option(0, whole(0))
    padding: str = option("mask", one_of("mask", "include"))

    def make(self, site: Site) -> nn.Module:
        return GmlpBlock(self, site)


class GmlpBlock(Mixer):
    """See the equations above."""

    limited = True

    def __init__(self, spec: Gmlp, site: Site) -> None:
        super().__init__()
        split = spec.gate == "split"
        if split and site.d_ff % 2:
            raise ValueError(f'gmlp(gate="split") halves d_ff, and d_ff={site.d_ff} is odd')
        self.spec, self.site = spec, site
        self.width = site.d_ff // 2 if split else site.d_ff
        self.u = linear(site, site.d_model, site.d_ff)
        self.v = linear(site, self.width, site.d_model)
        self.norm = LayerNorm(self.width, eps=1e-5)
        n = site.max_length
        self.weight = nn.Parameter(torch.empty(2 * n - 1) if spec.toeplitz else torch.empty(n, n))
        self.bias = nn.Parameter(torch.empty(n))
        self.attention = TinyAttention(spec.attention, self.width, site) if spec.attention else None
        self.by_rows, self.sees_padding = self.attention is None, spec.padding == "include"
        self.dropout = nn.Dropout(site.inner_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.u, self.site)
        init_linear(self.v, self.site)
        nn.init.ones_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)
        n = self.site.max_length
        nn.init.normal_(self.weight, std=n**-0.5 if self.spec.gate == "linear" else 1e-6)
        nn.init.constant_(self.bias, 1.0 if self.spec.gate in ("split", "multiplicative") else 0.0)

    def matrix(self, length: int) -> Tensor:
        """The spatial projection W [length, length]."""
        return toeplitz(self.weight, length) if self.spec.toeplitz else self.weight[:length, :length]

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
        if self.spec.gate == "split":
            z1, z2 = self._halves(x)
        else:
            z1 = gelu_linear(self.u, x)
            z2 = self.norm(z1)
        if rows is not None:
            z1, z2 = rows.spread(z1), rows.spread(z2)
        tiny = None if self.attention is None else self.attention(x, mask, slot=slot, record=record)
        if slot is not None and not slot.fresh:
            f = mix_rows(self.matrix(slot.span)[None], slot.append("z2", z2), slot, softmax=False)
            f = f + self.bias[slot.positions.clamp(max=self.site.max_length - 1)].unsqueeze(-1)
            s = self._gate(z1, f if tiny is None else f + tiny)
        else:
            if slot is not None:
                slot.append("z2", z2)
            b, seen = self.bias[: z2.shape[1]], None if self.sees_padding else mask
            if record is not None:
                w = self.matrix(z2.shape[1])
                record["mixing"] = reference.persistent_weights(w, seen, self.site.causal, softmax=False)
            if self.spec.gate in ("split", "multiplicative"):  # s(Z) = Z₁ ⊙ (W Z₂ + b)
                s = self._project(z2, seen, Gate(z1, b, tiny))
            else:
                f = self._project(z2, seen) + b[:, None]
                s = self._gate(z1, f if tiny is None else f + tiny)
        return self.v(self.dropout(s if rows is None else rows.gather(s)))

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Z₁ and norm(Z₂) of Z = gelu(X U)."""
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            # one by one: on a CPU cutting costs a copy, and joining a pass on the way back
            half = self.u.out_features // 2
            z1, z2 = (gelu_linear(self.u, x, rows=rows) for rows in (slice(half), slice(half, None)))
            return z1, self.norm(z2)
        return gelu_norm(x, self.u, self.norm)

    def _project(self, z: Tensor, mask: Tensor | None, epilogue: Gate | None = None) -> Tensor:
        """epilogue(W z); a Toeplitz W over a long sequence is never built."""
        if self.spec.toeplitz:
            return persist_toeplitz(self.weight, z, mask=mask, causal=self.site.causal, epilogue=epilogue)
        return persist(self.matrix(z.shape[1]), z, epilogue, mask=mask, causal=self.site.causal)

    def _gate(self, z: Tensor, f: Tensor) -> Tensor:
        match self.spec.gate:
            case "additive":
                return z + f
            case "linear":
                return f
            case _:
                return z * f


class TinyAttention(Mixer):
    """One head of attention over the block's normalised input, projected to the gate's width.        gMLP, Sec. 4.3"""

    def __init__(self, size: int, width: int, site: Site) -> None:
        super().__init__()
        self.size, self.site = size, site
        self.qkv = linear(site, site.d_model, 3 * size)
        self.out = linear(site, size, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.qkv, self.site)
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
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)  # one head
        q, causal = q * self.size**-0.5, self.site.causal
        if slot is not None:
            kv = slot.append("tiny", torch.cat([k, v], -1).squeeze(1))
            if not slot.fresh:
                k, v = kv.unsqueeze(1).chunk(2, -1)
                mask, causal = slot.visible(), False
        if record is not None:
            record["attention"] = reference.attention_weights(q, k, v.shape, mask=mask, causal=causal)
        dropout = self.site.attention_dropout if self.training else 0.0
        return self.out(attend(q, k, v, mask=mask, causal=causal, dropout=dropout).squeeze(1))
