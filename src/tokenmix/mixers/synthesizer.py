"""The synthesizing functions S(X) of the Synthesizer paper, each a term of attention logits.

| term                | S(X)                         | looks at        | parameters    |
|---------------------|------------------------------|-----------------|---------------|
| `dot`               | F_Q(X) F_K(X)ᵀ               | every pair      | 2d²           |
| `random`            | R                            | nothing         | hℓ²           |
| `factorized_random` | R₁R₂ᵀ                        | nothing         | 2hℓk          |
| `dense`             | W₂ relu(W₁X_i)               | its own token   | d² + dℓ       |
| `factorized_dense`  | H_A(F_A(X_i)) * H_B(F_B(X_i))| its own token   | d² + d(a + b) |
| `relative`          | a bias per distance          | nothing         | 32h           |

Dense is q·kᵀ with q = relu(X W₁ + b₁) and *learned keys* k = W₂ᵀ, factorized random has learned queries as well, so none
of them needs an ℓ×ℓ tensor per example. Parameters that depend on length are made for `max_length` and sliced.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tokenmix.mixers.attention import Asked, Attention, Logits, TermModule
from tokenmix.mixers.base import glorot_, init_linear, linear
from tokenmix.mixers.dense import FeatureMap
from tokenmix.mixers.expression import Check, Term, flag, one_of, option, register, whole
from tokenmix.mixers.relative import RelativeBias
from tokenmix.mixers.site import Site

__all__ = ["Attention", "Dense", "Dot", "FactorizedDense", "FactorizedRandom", "Random", "Relative"]


def _table(site: Site) -> tuple[int, int, int]:
    """[heads, queries, keys] of a mixing matrix at this site; keys stand in the memory for cross-attention."""
    return site.heads, site.max_length, site.memory_length or site.max_length


@register("dot")
class Dot(Term):
    """Dot-product attention, S(X) = F_Q(X) F_K(X)ᵀ: the Transformer's own, "V" in the paper's tables."""

    def make_term(self, site: Site) -> TermModule:
        return _Dot(self, site)


class _Dot(TermModule):
    def __init__(self, spec: Dot, site: Site) -> None:
        super().__init__()
        self.kind, self.site = spec.name, site
        self.query = linear(site, site.d_model, site.width)
        self.key = linear(site, site.d_model, site.width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # without a scale, T5 folds 1/√head_dim into the initial queries
        d, dk = self.site.d_model, self.site.head_dim
        init_linear(self.query, self.site, std=d**-0.5 if self.site.scale else (d * dk) ** -0.5)
        init_linear(self.key, self.site)

    def queries(self, asked: Asked) -> Tensor:
        return self._heads(asked.asking(self.query))

    def asking(self, asked: Asked) -> Tensor:
        """The queries as attention takes them."""
        q = asked.query if asked.dot is self and asked.query is not None else self.queries(asked)
        return q * self.site.head_dim**-0.5 if self.site.scale else q

    def logits(self, asked: Asked) -> Logits:
        return Logits(q=self.asking(asked), k=self._heads(asked.remember("key", lambda: asked.known(self.key))))

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.site.heads, self.site.head_dim)).transpose(1, 2)


@register("random")
class Random(Term):
    """Random Synthesizer, S(X) = R (Eq. 4): one matrix per head, learned, or as drawn with `fixed=True`."""

    fixed: bool = option(False, flag)

    def make_term(self, site: Site) -> TermModule:
        return _Random(self, site)


class _Random(TermModule):
    shared, limited, table = True, True, True

    def __init__(self, spec: Random, site: Site) -> None:
        super().__init__()
        self.kind, self.fixed = spec.name, spec.fixed
        table = torch.empty(_table(site))
        if spec.fixed:
            self.register_buffer("matrix", table)
        else:
            self.matrix = nn.Parameter(table)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.fixed:  # a fixed matrix near 0 would be plain averaging
            nn.init.normal_(self.matrix)
        else:
            glorot_(self.matrix)

    def logits(self, asked: Asked) -> Logits:
        return Logits(bias=asked.at(self.matrix)[..., : asked.keys])


@register("factorized_random")
class FactorizedRandom(Term):
    """Factorized Random Synthesizer, S(X) = R₁R₂ᵀ (Eq. 7) with R₁, R₂ of width k."""

    k: int = option(8, whole(1))

    def make_term(self, site: Site) -> TermModule:
        return _FactorizedRandom(self, site)


class _FactorizedRandom(TermModule):
    shared, limited = True, True

    def __init__(self, spec: FactorizedRandom, site: Site) -> None:
        super().__init__()
        self.kind = spec.name
        heads, queries, keys = _table(site)
        self.r1 = nn.Parameter(torch.empty(heads, queries, spec.k))
        self.r2 = nn.Parameter(torch.empty(heads, keys, spec.k))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for r in (self.r1, self.r2):
            limit = math.sqrt(6.0 / (r.shape[1] + r.shape[2]))
            nn.init.uniform_(r, -limit, limit)

    def logits(self, asked: Asked) -> Logits:
        r1, r2 = asked.at(self.r1), self.r2[None, :, : asked.keys]
        return Logits(q=r1[None] if r1.dim() == 3 else r1, k=r2)


widths = Check(
    lambda v: (
        (type(v) is int and v >= 1 and v % 2 == 1)
        or (isinstance(v, tuple) and len(v) == 2 and all(type(w) is int and w >= 1 and w % 2 == 1 for w in v))
    ),
    "an odd width such as 3, or two such as (3, 5)",
)


@register("dense")
class Dense(Term):
    """Dense Synthesizer, S(X) = W₂ relu(W₁X + b₁) + b₂ (Eq. 1–2), each token on its own.

    `shared`: one W₂ for all heads, as the published T5 runs. `query="dot"`: read the dot term's own query instead of
    W₁X (the runs' D+V). `f`: the variants of appendix A.2; `width` is the width of their convolutions, `bottleneck`
    that of the narrow layer. `bias=False` leaves out b₁ and b₂.
    """

    f: str = option("relu", one_of("relu", "conv", "conv_relu_conv", "bottleneck", "bottleneck_conv", "glu"))
    shared: bool = option(False, flag)
    query: str = option("own", one_of("own", "dot"))
    width: int | tuple[int, int] = option(3, widths)
    bottleneck: int = option(16, whole(1))
    bias: bool = option(True, flag)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query == "dot" and self.f != "relu":
            raise ValueError(
                f'dense(query="dot") takes the relu of the dot term\'s query; it does not go with f="{self.f}"'
            )

    def make_term(self, site: Site) -> TermModule:
        return _Dense(self, site)


class _Dense(TermModule):
    limited = True

    def __init__(self, spec: Dense, site: Site) -> None:
        super().__init__()
        self.kind, self.site, self.from_dot = spec.name, site, spec.query == "dot"
        self.features = None if self.from_dot else FeatureMap(spec.f, spec.width, spec.bottleneck, spec.bias, site)
        width = site.head_dim if self.features is None else self.features.out_width
        heads, _, keys = _table(site)
        self.keys = nn.Parameter(torch.empty(1 if spec.shared else heads, keys, width))  # W₂ᵀ
        self.key_bias = nn.Parameter(torch.empty(1 if spec.shared else heads, keys)) if spec.bias else None  # b₂
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.keys, std=0.02 if self.site.init == "bert" else self.keys.shape[-1] ** -0.5)
        if self.key_bias is not None:
            nn.init.zeros_(self.key_bias)

    def logits(self, asked: Asked) -> Logits:
        # F(X) = W₂ relu(W₁X + b₁) + b₂ = q·kᵀ + b₂  with learned keys k = W₂ᵀ
        heads = self.site.heads
        q = self.features(asked) if self.features is not None else torch.relu(asked.query)  # type: ignore[arg-type]
        key = None if self.key_bias is None else self.key_bias[:, : asked.keys].expand(heads, -1)
        return Logits(q=q, k=self.keys[:, : asked.keys].expand(heads, -1, -1)[None], key=key)


@register("factorized_dense")
class FactorizedDense(Term):
    """Factorized Dense Synthesizer (Eq. 5–6): A = F_A(X_i), B = F_B(X_i) with a·b = ℓ, C[i, j] = A[i, j mod a]·B[i, j div a].

    F_A and F_B share their first layer. `a=0` means ⌈√ℓ⌉.
    """

    a: int = option(0, whole(0))
    bias: bool = option(True, flag)

    def make_term(self, site: Site) -> TermModule:
        return _FactorizedDense(self, site)


class _FactorizedDense(TermModule):
    limited = True

    def __init__(self, spec: FactorizedDense, site: Site) -> None:
        super().__init__()
        self.kind, self.site = spec.name, site
        heads, _, keys = _table(site)
        self.a = spec.a or math.isqrt(keys - 1) + 1
        if self.a > keys:
            raise ValueError(f"factorized_dense(a={spec.a}): a is at most the length, here {keys}")
        self.b = -(-keys // self.a)
        self.first = linear(site, site.d_model, site.width, bias=spec.bias)
        self.second = nn.Parameter(torch.empty(heads, site.head_dim, self.a + self.b))
        self.second_bias = nn.Parameter(torch.empty(heads, 1, self.a + self.b)) if spec.bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.first, self.site)
        nn.init.normal_(self.second, std=0.02 if self.site.init == "bert" else self.site.head_dim**-0.5)
        if self.second_bias is not None:
            nn.init.zeros_(self.second_bias)

    def logits(self, asked: Asked) -> Logits:
        hidden = asked.asking(lambda x: torch.relu(self.first(x)))
        hidden = hidden.unflatten(-1, (self.site.heads, self.site.head_dim)).transpose(1, 2)
        both = hidden @ self.second  # [batch, heads, queries, a + b]
        if self.second_bias is not None:
            both = both + self.second_bias
        return Logits(tile=(both[..., : self.a], both[..., self.a :]))


@register("relative")
class Relative(Term):
    """A relative position bias per layer and head, and nothing else: "BERT + rel pos − attn" of the gMLP paper."""

    def make_term(self, site: Site) -> TermModule:
        return _Relative(self, site)


class _Relative(TermModule):
    shared, table = True, True

    def __init__(self, spec: Relative, site: Site) -> None:
        super().__init__()
        if site.memory_length:
            raise ValueError("relative cannot serve as cross-attention: there is no distance between two sequences")
        self.kind = spec.name
        self.bias = RelativeBias(
            site.heads,
            causal=site.causal,
            buckets=site.relative_buckets,
            distance=site.relative_distance,
            std=0.02 if site.init != "t5" else site.d_model**-0.5,
        )

    def logits(self, asked: Asked) -> Logits:
        return Logits(bias=self.bias(asked.keys, asked.slot))
