"""Colours that everyone can tell apart: two maps with even steps of lightness, and eight series for light and dark.

`SEQUENTIAL` is viridis, for shares from 0 up. `DIVERGING` is ColorBrewer's blue – white – red, for weights of both
signs. `SERIES` starts from Okabe and Ito's palette, darkened or lightened until every colour stands out from its
background; series differ by marker and dash as well, so that no figure depends on colour alone.
"""

from __future__ import annotations

import numpy as np

SEQUENTIAL = [
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
]
DIVERGING = [
    "#053061",
    "#2166ac",
    "#4393c3",
    "#92c5de",
    "#d1e5f0",
    "#f7f7f7",
    "#fddbc7",
    "#f4a582",
    "#d6604d",
    "#b2182b",
    "#67001f",
]
MAPS = {"sequential": SEQUENTIAL, "diverging": DIVERGING}

SERIES = ["#0072b2", "#d55e00", "#00805d", "#b0508a", "#8a6d00", "#3b8fc7", "#6b4fa0", "#555555"]
SERIES_DARK = ["#5ab4f0", "#ff9a5c", "#3fd0a4", "#f09ac8", "#e8c34a", "#9fd4f7", "#b9a3ee", "#c4c4c4"]
INK = {"ink": "#16202b", "muted": "#5b6673", "line": "#d5dae0", "paper": "#ffffff", "accent": "#0072b2"}
INK_DARK = {"ink": "#e7ecf2", "muted": "#9aa7b4", "line": "#35404c", "paper": "#131a22", "accent": "#5ab4f0"}


def rgb(colour: str) -> tuple[int, int, int]:
    """`#rrggbb` as three numbers."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def table(name: str) -> np.ndarray:
    """A colour map as 256 rows of red, green and blue, uint8.

    >>> table("sequential")[0].tolist()
    [68, 1, 84]
    """
    stops = np.array([rgb(colour) for colour in MAPS[name]], float)
    place = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(place, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def lightness(colours: np.ndarray) -> np.ndarray:
    """CIE L* of sRGB colours [n, 3] in 0 … 255: what the eye reads as dark and light."""
    c = np.asarray(colours, float) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    y = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


def limits(values: np.ndarray) -> tuple[str, float, float]:
    """The map that suits some values and the range it spans: 0 to the largest, or symmetric about 0.

    >>> limits(np.array([-1.0, 3.0]))
    ('diverging', -3.0, 3.0)
    """
    body = values[2:] if _causal(values) else values
    finite = body[np.isfinite(body)]
    top = float(np.abs(finite).max()) if finite.size else 0.0
    top = top or 1.0
    return ("diverging", -top, top) if finite.size and finite.min() < 0 else ("sequential", 0.0, top)


def _causal(values: np.ndarray) -> bool:
    """Whether a matrix is a decoder's: its first rows, with nobody else to draw from, would set the scale."""
    square = values.ndim == 2 and values.shape[0] == values.shape[1] > 4
    return square and not np.triu(values, 1).any()


def levels(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values as places 0 … 255 of a colour map; what is not a number takes the lowest."""
    scaled = (np.nan_to_num(values, nan=low) - low) / (high - low) * 255
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
