"""Does a claim hold? From our numbers by seed, and never on one seed or inside the noise.

A comparison of two rows is paired by seed. It is decided only where the wider of the bootstrap's and Student's 95%
interval of the difference lies wholly on one side of the claim's threshold; counted quantities have no noise.

>>> numbers = Numbers({"R": {"BLEU": [27.1, 27.3, 27.2]}, "V": {"BLEU": [27.6, 27.5, 27.6]}})
>>> within("R", "V", "BLEU", 1.0)(numbers).verdict
'holds'
>>> better("R", "V", "BLEU")(numbers).verdict
'does not hold'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tokenmix.compare.statistics import mean, wide_interval
from tokenmix.recipes.recipe import Verdict

HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "does not hold", "undecided", "not run yet"
COUNTED = ("Params", "FLOPs", "FLOPS", "MAdds", "#L")  # columns that are counted, not measured
Values: TypeAlias = Mapping[str, Mapping[str, Sequence[float | None]]]  #: row → column → one per seed, or None


def is_counted(column: str) -> bool:
    """Whether a column's numbers are counted and have no noise."""
    return column.startswith(COUNTED)


@dataclass(frozen=True)
class Numbers:
    """Our numbers: row → column → one value per seed, the same seeds in every row; None where one is missing."""

    values: Values
    lower: tuple[str, ...] = ()  #: columns in which less is better
    quick: bool = field(default=False)  #: a trial of the machinery (`tiny`): nothing is decided

    def get(self, row: str, column: str) -> list[float]:
        """One value per seed that has one; empty where it was not run."""
        return [value for value in self.values.get(row, {}).get(column, ()) if value is not None]

    def pairs(self, row: str, other: str, column: str) -> list[tuple[float, float]]:
        """The values of two rows, of the seeds that both have."""
        both = zip(*(self.values.get(name, {}).get(column, ()) for name in (row, other)))
        return [(a, b) for a, b in both if a is not None and b is not None]

    def gain(self, row: str, other: str, column: str, percent: bool = False) -> list[float]:
        """How much better ``row`` is than ``other``, by seed; with ``percent``, as a share of ``other``."""
        sign = -1.0 if column in self.lower else 1.0
        return [sign * (100 * (a / b - 1) if percent else a - b) for a, b in self.pairs(row, other, column)]


Check = Callable[[Numbers], Verdict]


def better(row: str, other: str, column: str, by: float = 0.0, percent: bool = False) -> Check:
    """``row`` is better than ``other`` by more than ``by``.

    With ``percent``, here and below, a threshold is a share of the other row's value, for numbers as far from the
    paper's as a small model's perplexity.
    """

    def check(numbers: Numbers) -> Verdict:
        if missing := _missing(numbers, (row, other), column):
            return missing
        apart, shown = numbers.gain(row, other, column, percent), _shown(numbers, (row, other), column)
        return _decide(apart, by, shown, numbers, column, percent)

    return check


def worse(row: str, other: str, column: str, by: float = 0.0, percent: bool = False) -> Check:
    """``row`` is worse than ``other`` by more than ``by``."""
    return better(other, row, column, by, percent)


def within(row: str, other: str, column: str, tolerance: float, percent: bool = False) -> Check:
    """``row`` and ``other`` differ by less than ``tolerance``: decided where the whole interval does, or none of it."""

    def check(numbers: Numbers) -> Verdict:
        if missing := _missing(numbers, (row, other), column):
            return missing
        apart, shown = numbers.gain(row, other, column, percent), _shown(numbers, (row, other), column)
        if early := _too_few(apart, shown, numbers, column):
            return early
        low, high = _interval(apart, column)
        unit = "%" if percent else ""
        text = f"difference {_between(low, high)}{unit}, asked: within ±{tolerance:g}{unit}"
        if -tolerance < low and high < tolerance:
            return Verdict(HOLDS, text, shown)
        if high < -tolerance or low > tolerance:
            return Verdict(FAILS, text, shown)
        return Verdict(UNDECIDED, text, shown)

    return check


def not_worse(row: str, other: str, column: str, tolerance: float, percent: bool = False) -> Check:
    """``row`` is no more than ``tolerance`` behind ``other``."""
    return better(row, other, column, -tolerance, percent)


def ratio_above(row: str, other: str, column: str, factor: float) -> Check:
    """The column's value of ``row`` is more than ``factor`` times that of ``other``."""

    def check(numbers: Numbers) -> Verdict:
        if missing := _missing(numbers, (row, other), column):
            return missing
        ratios = [a / b - factor for a, b in numbers.pairs(row, other, column)]
        return _decide(ratios, 0.0, _shown(numbers, (row, other), column), numbers, column)

    return check


def above(row: str, column: str, least: float) -> Check:
    """The column's value of ``row`` is above ``least``."""

    def check(numbers: Numbers) -> Verdict:
        if missing := _missing(numbers, (row,), column):
            return missing
        over = [value - least for value in numbers.get(row, column)]
        return _decide(over, 0.0, _shown(numbers, (row,), column), numbers, column)

    return check


def below(row: str, column: str, most: float) -> Check:
    """The column's value of ``row`` is below ``most``."""

    def check(numbers: Numbers) -> Verdict:
        if missing := _missing(numbers, (row,), column):
            return missing
        under = [most - value for value in numbers.get(row, column)]
        return _decide(under, 0.0, _shown(numbers, (row,), column), numbers, column)

    return check


def near(row: str, column: str, value: float, share: float = 0.01) -> Check:
    """A counted quantity meets the printed one within ``share``."""

    def check(numbers: Numbers) -> Verdict:
        if missing := _missing(numbers, (row,), column):
            return missing
        found = numbers.get(row, column)
        if numbers.quick:
            return Verdict(UNDECIDED, "a trial of the machinery: not the paper's sizes")
        off = found[0] / value - 1
        shown = f"{found[0]:,.4g} against the printed {value:,.4g}"
        return Verdict(
            HOLDS if abs(off) <= share else FAILS, f"{100 * off:+.1f}%, asked: within {100 * share:g}%", shown
        )

    return check


def every(*checks: Check) -> Check:
    """All of them: one that fails is enough against it, one that is open leaves it open."""

    def check(numbers: Numbers) -> Verdict:
        found = [one(numbers) for one in checks]
        ours = "; ".join(dict.fromkeys(v.ours for v in found if v.ours))
        reason = "; ".join(dict.fromkeys(v.reason for v in found))
        for wanted in (FAILS, NOT_RUN, UNDECIDED):
            hits = [v for v in found if v.verdict == wanted]
            if hits:
                return Verdict(wanted, "; ".join(dict.fromkeys(v.reason for v in hits)), ours)
        return Verdict(HOLDS, reason, ours)

    return check


def same_slope(
    family: Sequence[str], other: Sequence[str], size: str, column: str, tolerance: float, logarithmic: bool = True
) -> Check:
    """Two families improve equally fast with size: the slopes of log(column) over log(size) differ by < ``tolerance``.

    With ``logarithmic`` off the column itself is fitted over log(size), as for accuracies.
    """

    def slopes(numbers: Numbers, rows: Sequence[str]) -> list[float]:
        sizes = [math.log(numbers.get(row, size)[0]) for row in rows]
        everywhere = zip(*(numbers.values[row][column] for row in (*family, *other)))
        whole = [seed for seed, values in enumerate(everywhere) if None not in values]
        fitted = []
        for seed in whole:
            values = [float(numbers.values[row][column][seed]) for row in rows]  # type: ignore[arg-type]
            fitted.append(float(np.polyfit(sizes, np.log(values) if logarithmic else values, 1)[0]))
        return fitted

    def check(numbers: Numbers) -> Verdict:
        for rows in (family, other):
            if missing := _missing(numbers, rows, column) or _missing(numbers, rows, size):
                return missing
        a, b = slopes(numbers, family), slopes(numbers, other)
        apart = [x - y for x, y in zip(a, b)]
        shown = f"slopes {mean(a):.3f} and {mean(b):.3f}"
        if early := _too_few(apart, shown, numbers, column):
            return early
        low, high = wide_interval(apart)
        text = f"difference of slopes {_between(low, high)}, asked: within ±{tolerance:g}"
        if -tolerance < low and high < tolerance:
            return Verdict(HOLDS, text, shown)
        return Verdict(FAILS if high < -tolerance or low > tolerance else UNDECIDED, text, shown)

    return check


def said(reason: str) -> Check:
    """A claim that no number of this recipe decides; the reason says what would."""
    return lambda numbers: Verdict(NOT_RUN, reason)


# --------------------------------------------------------------------------------------------------------------- parts


def _missing(numbers: Numbers, rows: Sequence[str], column: str) -> Verdict | None:
    for row in rows:
        if not numbers.get(row, column):
            return Verdict(NOT_RUN, f"{row} has no {column} at this scale")
    return None


def _too_few(apart: Sequence[float], shown: str, numbers: Numbers, column: str) -> Verdict | None:
    if numbers.quick:
        return Verdict(UNDECIDED, "a trial of the machinery: a few steps decide nothing", shown)
    if len(apart) < 2 and not is_counted(column):
        return Verdict(UNDECIDED, "one seed decides nothing", shown)
    return None


def _interval(apart: Sequence[float], column: str) -> tuple[float, float]:
    if is_counted(column):
        return apart[0], apart[0]
    return wide_interval(apart)


def _between(low: float, high: float) -> str:
    return f"{low:+.3g}" if low == high else f"{low:+.3g} … {high:+.3g}"


def _decide(
    apart: Sequence[float], by: float, shown: str, numbers: Numbers, column: str, percent: bool = False
) -> Verdict:
    if early := _too_few(apart, shown, numbers, column):
        return early
    low, high = _interval(apart, column)
    unit = "%" if percent else ""
    text = f"difference {_between(low, high)}{unit}, asked: above {by:g}{unit}"
    if low > by:
        return Verdict(HOLDS, text, shown)
    return Verdict(FAILS if high < by else UNDECIDED, text, shown)


def _shown(numbers: Numbers, rows: Sequence[str], column: str) -> str:
    parts = []
    for row in rows:
        values = numbers.get(row, column)
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 and not is_counted(column) else ""
        parts.append(f"{row} {mean(values):,.4g}{spread}")
    counts = [len(numbers.get(row, column)) for row in rows]
    same = len(set(counts)) == 1
    told = f"{counts[0]} seed{'s' * (counts[0] > 1)}" if same else f"{' and '.join(map(str, counts))} seeds"
    seeds = "" if is_counted(column) else f" ({told})"
    return f"{column}: " + ", ".join(parts) + seeds
