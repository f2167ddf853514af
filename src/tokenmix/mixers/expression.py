"""The language of layers: `random + dot | remix(alpha=0.3)`.

A layer is an expression. `|` puts residual sublayers in sequence, `+` adds attention logits before one softmax. The
object form is the same sentence in Python:

>>> from tokenmix.mixers import Dot, Random, Remix
>>> parse("random + dot | remix(alpha=0.3)") == (Random() + Dot() | Remix(alpha=0.3))
True
>>> str(Random() + Dot() | Remix(alpha=0.3))
'random + dot | remix(alpha=0.3)'

The text is read with Python's own `ast`; nothing in it is evaluated. Names are small frozen dataclasses: hashable,
comparable, printable. A new mixer registers itself here with `@register("name")` and is known everywhere.
"""

from __future__ import annotations

import ast
import functools
import json
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from torch import nn

from tokenmix.mixers.site import Site
from tokenmix.naming import nearest, unknown

# ---------------------------------------------------------------------------------------------- options and checks


@dataclass(frozen=True)
class Check:
    """What an option accepts: a predicate, the words for it, and the accepted value nearest to a wrong one.

    Checks combine with `|`.
    """

    accepts: Callable[[Any], bool]
    words: str
    suggest: Callable[[Any], Any] = lambda value: None

    def __or__(self, other: Check) -> Check:
        def suggest(value: Any) -> Any:
            near = self.suggest(value)
            return other.suggest(value) if near is None else near

        return Check(
            lambda value: self.accepts(value) or other.accepts(value), f"{self.words} or {other.words}", suggest
        )


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_literal, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def one_of(*values: Any) -> Check:
    """Exactly one of these values (and of the same type: True is not 1)."""
    words = ", ".join(_literal(value) for value in values)
    texts = [value for value in values if isinstance(value, str)]
    return Check(
        lambda v: any(type(v) is type(value) and v == value for value in values),
        f"one of {words}",
        lambda v: nearest(v, texts) if isinstance(v, str) else None,
    )


def whole(low: int) -> Check:
    """A whole number of at least `low`."""
    return Check(
        lambda v: type(v) is int and v >= low,
        f"a whole number >= {low}",
        lambda v: max(low, round(v)) if type(v) in (int, float) and math.isfinite(v) else None,
    )


def between(low: float, high: float, *, below: bool = False) -> Check:
    """A real number in [low, high], or in [low, high) with `below`."""
    return Check(
        lambda v: type(v) in (int, float) and low <= v and (v < high if below else v <= high),
        f"a number in [{low:g}, {high:g}{')' if below else ']'}",
        lambda v: (
            low if type(v) in (int, float) and v < low else high if type(v) in (int, float) and v > high else None
        ),
    )


flag = one_of(True, False)


def option(default: Any, check: Check) -> Any:
    """A dataclass field that an expression can set: `alpha: float = option(0.5, between(0, 1))`."""
    return field(default=default, metadata={"check": check})


# ------------------------------------------------------------------------------------------------- the expressions


AROUND = ("norm", "norm_eps", "post_norm", "dropout", "drop_path")  # options of a site that act around a sublayer


class Expression:
    """What `parse` returns: one sublayer, a sum of attention terms, or several sublayers in sequence."""

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """The residual sublayers, in order."""
        raise TypeError(f"{type(self).__name__} is not a layer expression")

    def __or__(self, other: Expression) -> Layer:
        if not isinstance(other, Expression):
            return NotImplemented
        return Layer(self.sublayers + other.sublayers)

    def __add__(self, other: Expression) -> Mix:
        if not isinstance(other, Expression):
            return NotImplemented
        return Mix(_terms(self) + _terms(other))

    def build(self, site: Site | None = None, **sizes: Any) -> nn.Module:
        """Make the `nn.Module`; sizes are those of :class:`~tokenmix.mixers.site.Site`.

        A layer, `a | b`, wraps each sublayer in norm and residual; a sublayer alone is built bare.

        >>> parse("dot").build(d_model=64, heads=4, max_length=32)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        """
        if site is not None and sizes:
            raise TypeError("give either a Site or sizes, not both")
        if site is None:
            known = [f.name for f in fields(Site) if f.name != "memory_length"]  # models alone make cross-attention
            for name in sizes:
                if name not in known:
                    raise unknown("option of build", name, known)
                if isinstance(self, Sublayer) and name in AROUND:
                    raise ValueError(
                        f"{name} belongs to the norm and residual around a sublayer, and {str(self)!r} alone is built "
                        f"without them; Layer(({type(self).__name__}(),)) has them, as has every 'a | b'"
                    )
            site = Site(**sizes)
        from tokenmix.mixers.base import check_input

        self.check_site(site)
        module = self.make(site)
        limited = any(getattr(part, "limited", False) for part in module.modules())
        check = functools.partial(check_input, site.d_model, site.max_length if limited else None)
        module.register_forward_pre_hook(check, with_kwargs=True)
        return module

    def check_site(self, site: Site) -> None:
        """An error if the site is a decoder, and one of the sublayers cannot run there."""
        for part in self.sublayers:
            for kind in (part, *getattr(part, "terms", ())):
                if site.causal and not kind.causal:
                    raise ValueError(
                        f"{kind.name} cannot be causal: {kind.acausal}; use it in an encoder, and give the decoder a "
                        "layer of its own"
                    )

    def make(self, site: Site) -> nn.Module:
        """The module for this site; each expression says which."""
        raise TypeError(f"{self} cannot be built")


class Sublayer(Expression):
    """One named sublayer. Subclasses are frozen dataclasses whose fields are their options."""

    name: ClassVar[str]
    causal: ClassVar[bool] = True  #: can it run in a decoder?
    acausal: ClassVar[str] = "it sees the tokens that follow"  #: why not, where it cannot
    mixes: ClassVar[bool] = True  #: does it move information between tokens?

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            value, check = getattr(self, f.name), f.metadata["check"]
            if not check.accepts(value):
                near = check.suggest(value)
                hint = "" if near is None or not check.accepts(near) else f"; did you mean {_literal(near)}?"
                raise ValueError(f"{self.name}({f.name}={_literal(value)}): {f.name} must be {check.words}{hint}")
            if type(f.default) is float and type(value) is int:  # alpha=1 and alpha=1.0 are one expression
                value = float(value)
                object.__setattr__(self, f.name, value)
            if value == 0 and type(value) is float:  # so are 0 and -0
                object.__setattr__(self, f.name, 0.0)

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return (self,)

    def __str__(self) -> str:
        options: Any = fields(self)  # type: ignore[arg-type]
        given = [f"{f.name}={_literal(getattr(self, f.name))}" for f in options if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(given)})" if given else self.name


class Term(Sublayer):
    """A sublayer that is a term of attention logits, so that it may be added to others with `+`."""

    def make(self, site: Site) -> nn.Module:
        from tokenmix.mixers.attention import Attention

        return Attention((self,), None, site)

    def make_term(self, site: Site) -> nn.Module:
        """The module that computes this term's share of the logits."""
        raise TypeError(f"{self.name} computes no logits")


ALPHA_RULES = ("softmax", "sum", "sigmoid")


@dataclass(frozen=True)
class Mix(Sublayer):
    """Softmax(α₁S₁(X) + … + α_N S_N(X)) G(X), Eq. 8 of the Synthesizer paper.

    `alpha` says how the weights come about: "softmax" (learnable, Σα = 1), "sum" (all 1) or "sigmoid" (two terms,
    (1−α)·QKᵀ + α·S), the last two as the published T5 runs had it.
    """

    terms: tuple[Term, ...]
    alpha: str = "softmax"
    name: ClassVar[str] = "mix"

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        if self.alpha not in ALPHA_RULES:
            raise unknown("rule for mix(alpha=…)", self.alpha, ALPHA_RULES)
        for term in self.terms:
            if not isinstance(term, Term):
                raise _not_a_term(term)
        if len(self.terms) < 2:
            raise ValueError(f"mix needs at least two attention terms, as in mix(random, dot); got {len(self.terms)}")
        if self.alpha == "sigmoid" and len(self.terms) != 2:
            raise ValueError(f'mix(alpha="sigmoid") weighs exactly two terms, (1−α)·QKᵀ + α·S; got {len(self.terms)}')

    def make(self, site: Site) -> nn.Module:
        from tokenmix.mixers.attention import Attention

        return Attention(self.terms, self.alpha, site)

    def __str__(self) -> str:
        if self.alpha == "softmax":
            return " + ".join(map(str, self.terms))
        return f"mix({', '.join(map(str, self.terms))}, alpha={_literal(self.alpha)})"


@dataclass(frozen=True)
class Layer(Expression):
    """Sublayers in sequence, each wrapped in norm and residual (the ψ of the Remixer paper)."""

    parts: tuple[Sublayer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if strangers := [part for part in self.parts if not isinstance(part, Sublayer)]:
            raise ValueError(f"a layer is made of sublayers, such as Dot() or Mlp(); got {strangers[0]!r}")
        if not self.parts:
            raise ValueError("a layer has at least one sublayer; got none")

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return self.parts

    def make(self, site: Site) -> nn.Module:
        from tokenmix.mixers.residual import Residual, ResidualLayer

        return ResidualLayer(Residual(part.make(site), site) for part in self.parts)

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))


def mix(*terms: Expression | str, alpha: str = "softmax") -> Mix:
    """The long form of `+`: `mix(Random(), Dot(), alpha="sum")`, or `mix("random", "dot", alpha="sum")`."""
    return Mix(tuple(term for given in terms for term in _terms(parse(given))), alpha)


def _terms(expression: Expression) -> tuple[Term, ...]:
    if isinstance(expression, Term):
        return (expression,)
    if isinstance(expression, Mix):
        if expression.alpha != "softmax":
            raise ValueError(
                f"{expression} has a rule of its own and cannot be added to; list all its terms inside mix(…)"
            )
        return expression.terms
    raise _not_a_term(expression)


def _not_a_term(culprit: Any) -> ValueError:
    terms = [name for name, kind in REGISTRY.items() if issubclass(kind, Term)]
    return ValueError(
        f"'+' adds attention terms, and '{culprit}' is none; put it in sequence with '|' instead. "
        f"Attention terms: {', '.join(sorted(terms))}"
    )


# ------------------------------------------------------------------------------------------------------ the registry

REGISTRY: dict[str, type[Sublayer]] = {}

S = TypeVar("S", bound=type[Sublayer])


def register(name: str) -> Callable[[S], S]:
    """Class decorator: make a sublayer known to the language under `name`."""

    def add(cls: S) -> S:
        cls.name = name
        frozen = dataclass(frozen=True)(cls)
        for f in fields(frozen):  # type: ignore[arg-type]
            if f.default is MISSING or "check" not in f.metadata:
                raise TypeError(f"{cls.__name__}.{f.name} needs option(default, check)")
        REGISTRY[name] = frozen
        return frozen  # type: ignore[return-value]

    return add


# -------------------------------------------------------------------------------------------------------- the reader

LONGEST = 4000  # characters; an expression is a sentence, not a program


def parse(text: str | Expression) -> Expression:
    """Read a layer expression. Whatever is wrong is a `ValueError` that names the culprit and lists what exists.

    >>> parse("randm | mlp")
    Traceback (most recent call last):
    ValueError: unknown mixer 'randm'; did you mean 'random'? Known: …
    """
    if isinstance(text, Expression):
        return text
    if not isinstance(text, str):
        raise ValueError(
            f"a layer expression is text such as 'random + dot | geglu'; got {type(text).__name__}. {_known()}"
        )
    source = " ".join(text.split())
    if not source:
        raise ValueError(f"empty layer expression; one is, for instance, 'random + dot | geglu'. {_known()}")
    strange = next((c for c in source if not c.isascii() or not c.isprintable() or c in "#;\\"), None)
    if strange is not None:
        raise ValueError(f"character {strange!r} has no place in a layer expression: {source[:80]!r}. {_known()}")
    if len(source) > LONGEST:
        raise ValueError(f"layer expression of {len(source)} characters; at most {LONGEST} are read")
    try:
        tree = ast.parse(source, mode="eval").body
        return _read(tree, source)
    except SyntaxError as error:
        raise ValueError(
            f"cannot read the layer expression {source!r}: {error.msg} at column {error.offset}. {_known()}"
        ) from None
    except (RecursionError, MemoryError):
        raise ValueError(f"the layer expression nests too deeply: {source[:80]!r}…") from None


def _read(node: ast.expr, source: str) -> Expression:
    match node:
        case ast.BinOp(op=ast.BitOr() | ast.Add() as op):
            operands: list[ast.expr] = []
            while isinstance(node, ast.BinOp) and type(node.op) is type(op):  # a chain leans to the left
                operands.append(node.right)
                node = node.left
            parts = [_read(part, source) for part in reversed([*operands, node])]
            if isinstance(op, ast.BitOr):
                return Layer(tuple(sublayer for part in parts for sublayer in part.sublayers))
            return Mix(tuple(term for part in parts for term in _terms(part)))
        case ast.Name(id=name):
            if name == "mix":
                raise ValueError('mix takes its terms in brackets: mix(random, dot, alpha="sum")')
            return _lookup(name)()
        case ast.Call(func=ast.Name(id="mix"), args=args, keywords=keywords):
            given = _options("mix", keywords, ("alpha",))
            return mix(*(_read(arg, source) for arg in args), **given)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            kind = _lookup(name)
            known = tuple(f.name for f in fields(kind))  # type: ignore[arg-type]
            if args:
                hint = f"{name}({known[0]}={ast.unparse(args[0])})" if known else f"{name} has no options"
                raise ValueError(f"options are given by name: {hint}; got {ast.unparse(node)}")
            return kind(**_options(name, keywords, known))
        case _:
            raise ValueError(f"cannot read {ast.unparse(node)!r} in the layer expression {source!r}. {_known()}")


def _known() -> str:
    """What an expression is made of, for whoever wrote one that is not."""
    mixers = ", ".join(sorted(REGISTRY))
    return f"It is made of mixers, '|', '+', brackets and options by name. Known mixers: {mixers}"


def _lookup(name: str) -> type[Sublayer]:
    if name not in REGISTRY:
        raise unknown("mixer", name, REGISTRY)
    return REGISTRY[name]


def _options(owner: str, keywords: list[ast.keyword], known: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg is None:
            raise ValueError(f"{owner}(**…): options are given by name, one by one")
        if keyword.arg not in known:
            if not known:
                raise ValueError(f"{owner} has no options; got {keyword.arg!r}")
            raise unknown(f"option of {owner}", keyword.arg, known)
        if keyword.arg in given:
            raise ValueError(f"{owner}: option {keyword.arg!r} is given twice")
        given[keyword.arg] = _value(keyword.value, f"{owner}({keyword.arg}=…)")
    return given


def _value(node: ast.expr, where: str) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | str() as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ) and math.isfinite(value):
            return -value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, where) for item in items)
        case _:
            raise ValueError(
                f"{where}: {ast.unparse(node)!r} is no value; give a finite number, a text in quotes, True or False"
            )
