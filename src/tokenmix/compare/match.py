"""Equal sizes: the width of each model adjusted until it has the baseline's parameters, or its arithmetic.

The rule: layers and d_model stay, and d_ff is adjusted in multiples of 8 (of the heads of a mixer, where they split
it). A model that d_ff between d_model / 2 and 8 · d_model cannot bring within 2% has d_model adjusted, its ratio
of d_ff to d_model kept. What comes closest is taken, and how close it comes is reported.

>>> matched = match(baseline, {"gmlp": config}, "params")["gmlp"]
>>> matched.options, round(matched.ratio, 2)
({'d_ff': 176}, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmix.models.config import TokenmixConfig
from tokenmix.models.counting import count_parameters, forward_flops
from tokenmix.models.create import plain
from tokenmix.naming import unknown

RULES = {
    "params": "d_ff (else d_model) is adjusted until the parameters are those of the baseline",
    "flops": "d_ff (else d_model) is adjusted until a forward pass takes the baseline's FLOPs",
    "none": "sizes are as given",
}
STEP = 8
CLOSE = 0.02


@dataclass(frozen=True)
class Matched:
    """The options that match a model to the baseline, and how close it comes."""

    options: dict[str, int]
    value: float
    target: float

    @property
    def ratio(self) -> float:
        """The model's size divided by the baseline's."""
        return self.value / self.target

    def as_dict(self) -> dict[str, Any]:
        return {"options": self.options, "value": self.value, "target": self.target, "ratio": self.ratio}


def measure_of(rule: str, shape: tuple[int, int] | None = None) -> Callable[[TokenmixConfig], float]:
    """What a rule holds equal, as a function of the configuration."""
    if rule == "params":
        return lambda config: float(count_parameters(config).total)
    if rule == "flops":
        lengths = {"length": shape[0], "target_length": shape[1] or None} if shape else {}
        return lambda config: float(forward_flops(config, **lengths).total)  # type: ignore[arg-type]
    raise unknown("rule for --match", rule, RULES)


def match(
    baseline: TokenmixConfig,
    models: Mapping[str, TokenmixConfig],
    rule: str,
    shape: tuple[int, int] | None = None,
) -> dict[str, Matched]:
    """Bring each model to the baseline's size. ``shape``: lengths of input and target at which FLOPs are counted."""
    measure = measure_of(rule, shape)
    target = measure(baseline)
    return {name: _match_one(config, measure, target) for name, config in models.items()}


def _match_one(config: TokenmixConfig, measure: Callable[[TokenmixConfig], float], target: float) -> Matched:
    value = measure(config)
    if abs(value / target - 1) < 1e-3:
        return Matched({}, value, target)
    d_ff = config.d_ff or 4 * config.d_model
    inner = _search(config, measure, target, "d_ff", _unit(config), d_ff, config.d_model // 2, 8 * config.d_model)
    if abs(inner.ratio - 1) <= CLOSE:
        return inner
    unit = math.lcm(STEP, 2 * config.heads)
    fixed = config.head_dim is not None
    outer = _search(
        config,
        measure,
        target,
        "d_model",
        unit,
        config.d_model,
        unit,
        16 * config.d_model,
        d_ff / config.d_model,
        fixed,
    )
    return min(inner, outer, key=lambda found: abs(math.log(found.ratio)))


def _unit(config: TokenmixConfig) -> int:
    """d_ff moves in steps that every mixer can split."""
    heads = 1
    for text in (config.layer, config.decoder_layer or ""):
        for piece in text.split("heads=")[1:]:
            heads = math.lcm(heads, int("".join(c for c in piece.split(",")[0].split(")")[0] if c.isdigit()) or 1))
    return math.lcm(STEP, 2 * heads)


def _search(
    config: TokenmixConfig,
    measure: Callable[[TokenmixConfig], float],
    target: float,
    option: str,
    unit: int,
    start: int,
    low: int,
    high: int,
    ratio: float | None = None,
    keep_head_dim: bool = False,
) -> Matched:
    """Bisection over multiples of ``unit``: sizes grow with widths."""

    def options(multiple: int) -> dict[str, int]:
        width = multiple * unit
        found = {option: width}
        if ratio is not None:
            found["d_ff"] = max(_unit(config), round(width * ratio / _unit(config)) * _unit(config))
        return found

    def size(multiple: int) -> float:
        return measure(TokenmixConfig(**{**plain(config), **extra, **options(multiple)}))

    extra: dict[str, Any] = {} if ratio is None or keep_head_dim else {"head_dim": None}
    a, b = max(1, low // unit), max(1, high // unit)
    while a < b:
        middle = (a + b) // 2
        if size(middle) < target:
            a = middle + 1
        else:
            b = middle
    candidates = {max(1, a - 1), a}
    best = min(candidates, key=lambda multiple: abs(math.log(size(multiple) / target)))
    return Matched(options(best), size(best), target)
