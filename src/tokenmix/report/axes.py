"""Axes: round numbers for ticks, short numbers for labels, and a frame with grid lines that maps data to a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenmix.report.scene import Line, Shape, Text


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers inside a range.

    >>> ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.8)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside a range; with 2 and 5 between them, or plain round numbers, where the range is short.

    >>> log_ticks(0.5, 200)
    [1.0, 10.0, 100.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / 7)]
    return [tick for tick in ticks(low, high, 4) if tick > 0] or [low]


def short(value: float | None) -> str:
    """A number in few characters: 1.2k, 65.3M, 4.10G, 0.031.

    >>> [short(x) for x in (0, 0.03125, 12.5, 1200, 65_300_000)]
    ['0', '0.0312', '12.5', '1.2k', '65.3M']
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return _three(value / size) + letter
    if abs(value) >= 1e-3:
        return _three(value)
    digits, power = f"{value:.1e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


@dataclass(frozen=True)
class Frame:
    """A rectangle of a drawing with data ranges on its sides."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    log_x: bool = False
    log_y: bool = False

    def across(self, value: float) -> float:
        """The place of x = value."""
        return self.left + self.width * _share(value, self.x, self.log_x)

    def up(self, value: float) -> float:
        """The place of y = value."""
        return self.top + self.height * (1 - _share(value, self.y, self.log_y))

    def point(self, x: float, y: float) -> tuple[float, float]:
        return self.across(x), self.up(y)

    def draw(
        self,
        xlabel: str = "",
        ylabel: str = "",
        size: float = 12,
        x_ticks: Sequence[float] | None = None,
        y_ticks: Sequence[float] | None = None,
    ) -> list[Shape]:
        """Grid lines, tick labels and axis labels."""
        right, bottom = self.left + self.width, self.top + self.height
        shapes: list[Shape] = []
        if y_ticks is None:
            y_ticks = log_ticks(*self.y) if self.log_y else ticks(*self.y, max(2, round(self.height / 55)))
        if x_ticks is None:
            x_ticks = log_ticks(*self.x) if self.log_x else ticks(*self.x, max(2, round(self.width / 75)))
        for tick in y_ticks:
            y = self.up(tick)
            shapes.append(Line(((self.left, y), (right, y)), "line"))
            shapes.append(Text(self.left - 6, y + size * 0.35, short(tick), size, "end", "muted"))
        shapes.append(Line(((self.left, bottom), (right, bottom)), "muted"))
        for tick in x_ticks:
            x = self.across(tick)
            shapes.append(Line(((x, bottom), (x, bottom + 4)), "muted"))
            shapes.append(Text(x, bottom + 6 + size, short(tick), size, "middle", "muted"))
        if xlabel:
            shapes.append(Text(self.left + self.width / 2, bottom + 12 + 2 * size, xlabel, size, "middle"))
        if ylabel:
            shapes.append(Text(0, self.top - size * 1.15, ylabel, size, "start"))
        return shapes


def padded(values: Sequence[float], share: float = 0.06, least: float = 0.0) -> tuple[float, float]:
    """The range of some values with a margin on both sides; at least ``least`` wide."""
    low, high = min(values), max(values)
    spread = max(high - low, least) or abs(high) * 0.1 or 1.0
    middle = (low + high) / 2
    return middle - spread * (0.5 + share), middle + spread * (0.5 + share)


def _share(value: float, span: tuple[float, float], log: bool) -> float:
    low, high = span
    if log:
        value, low, high = (math.log(max(v, 1e-300)) for v in (value, low, high))
    return (value - low) / ((high - low) or 1.0)
