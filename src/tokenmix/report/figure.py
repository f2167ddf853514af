"""A figure: its data in panels, and how it is shown — as SVG, PNG, in a notebook, or as part of a page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokenmix.report import colours
from tokenmix.report.axes import Frame, log_ticks, short, ticks
from tokenmix.report.scene import DASHES, Box, Line, Raster, Scene, Shape, Text

SMALL, NORMAL = 10.0, 12.0
WIDTH, LEAST = 1085.0, 84  # of a drawing on a page; of a panel
FORMATS = (".svg", ".png", ".html")


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix: rows ask, columns are drawn from. Names of rows and columns (tokens) are written where they fit."""

    title: str
    values: np.ndarray  #: [rows, columns]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves over a common x; with `steps`, histograms: x holds the edges, one more than values."""

    title: str
    x: np.ndarray
    series: dict[str, np.ndarray]
    steps: bool = False
    log: bool = False  #: the y axis

    @property
    def values(self) -> np.ndarray:
        """All series [series, points]."""
        return np.stack(list(self.series.values()))


Panel = Heatmap | Lines


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels in rows, with what a reader must know to read them.

    >>> figure = tokenmix.figures.remixer_memory(model, "jump twice", tokenizer=tokenizer)
    >>> figure.data["softmax(H) · layer 1"].shape
    (3, 3)
    >>> figure.save("memory.svg")                          # or .png, or .html
    """

    name: str  #: a word for file names
    title: str
    caption: str
    panels: tuple[tuple[Panel, ...], ...]  #: rows of panels
    xlabel: str = ""
    ylabel: str = ""
    unit: str = "weight"  #: what the values of a heatmap are
    size: float = 150.0  #: side of a panel

    @property
    def data(self) -> dict[str, np.ndarray]:
        """What is drawn, by title of the panel."""
        return {panel.title: panel.values for row in self.panels for panel in row}

    def scene(self) -> Scene:
        """The drawing."""
        return _lay_out(self)

    def svg(self, *, page: bool = False) -> str:
        """SVG text, with its title inside; on a page the title stands in the page's own type."""
        return _lay_out(self, heading=not page).svg(page=page)

    def png(self, scale: float = 2.0) -> bytes:
        """A PNG file."""
        return self.scene().png(scale)

    def html(self) -> str:
        """The figure as an interactive page of its own: the value under the pointer is shown."""
        from tokenmix.report.page import figure_page

        return figure_page([self], self.title)

    def save(self, path: str | Path) -> Path:
        """Write it as `.svg`, `.png` or `.html`, by the name's ending."""
        path = Path(path)
        if path.suffix.lower() not in FORMATS:
            raise ValueError(f"cannot tell how to write {str(path)!r}: a figure is saved as {', '.join(FORMATS)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".png":
            path.write_bytes(self.png())
        else:
            path.write_text(self.html() if path.suffix.lower() == ".html" else self.svg(), encoding="utf-8")
        return path

    def _repr_svg_(self) -> str:
        return self.svg()

    def sized(self, most: float = 200.0, width: float = WIDTH) -> Figure:
        """The same figure with panels as large as a drawing of `width` has room for, `most` at the utmost."""
        for size in range(round(most), LEAST, -2):
            if _widths(self, size)[1] <= width:
                return replace(self, size=float(size))
        return replace(self, size=float(LEAST))

    def matrix_key(self, row: int, column: int) -> str:
        """What a panel's matrix is called on a page."""
        return f"{self.name}:{row}:{column}"


# --------------------------------------------------------------------------------------------------------- layout


def _text_width(text: str, size: float) -> float:
    return 0.58 * size * len(text)


def _margins(panel: Panel, size: float) -> tuple[float, float]:
    """Room for names to the left of a panel and below it."""
    if isinstance(panel, Lines):
        return 40.0, 18.0
    written = [_fits(names, size) for names in (panel.rows, panel.columns)]
    left = max((_text_width(name, SMALL) for name in panel.rows), default=0) + 6 if written[0] else 4.0
    below = max((_text_width(name, SMALL) for name in panel.columns), default=0) + 8 if written[1] else 4.0
    return min(left, 110.0), min(below, 110.0)


def _fits(names: tuple[str, ...], size: float) -> bool:
    return bool(names) and size / len(names) >= SMALL * 0.95


def _widths(figure: Figure, size: float) -> tuple[float, float]:
    """Of a cell (names, panel, gap), and of the whole drawing."""
    left = max(_margins(panel, size)[0] for row in figure.panels for panel in row)
    cell = left + size + 14
    return cell, (22.0 if figure.ylabel else 0.0) + max(len(row) for row in figure.panels) * cell


def _lay_out(figure: Figure, heading: bool = True) -> Scene:
    size = figure.size
    everything = [panel for row in figure.panels for panel in row]
    left = max(_margins(panel, size)[0] for panel in everything)
    below = max(_margins(panel, size)[1] for panel in everything)
    wide, tall = max(len(row) for row in figure.panels), len(figure.panels)
    side = 22.0 if figure.ylabel else 0.0
    top = 30.0 if heading else 4.0
    cell_width, width = _widths(figure, size)
    cell_height = 30 + below + (size if _square(everything) else size * 0.62)
    width = max(width, 360.0)
    if heading:
        width = max(width, _text_width(figure.title, 15) + 8)
    shapes: list[Shape] = []
    if heading:
        shapes.append(Text(4, 18, figure.title, 15, bold=True))
    for i, row in enumerate(figure.panels):
        for j, panel in enumerate(row):
            x, y = side + j * cell_width + left, top + i * cell_height + 18
            shapes += _panel(panel, x, y, size, cell_height - 30 - below, figure.matrix_key(i, j), figure.unit)
    bottom = top + tall * cell_height
    if figure.ylabel:
        shapes.append(Text(14, top + tall * cell_height / 2, figure.ylabel, NORMAL, "middle", upright=True))
    if figure.xlabel:
        shapes.append(Text(side + wide * cell_width / 2, bottom + 10, figure.xlabel, NORMAL, "middle"))
        bottom += 18
    legend = _legend(everything, side + 4, bottom + 8, figure.unit)
    return Scene(round(width), round(bottom + (30 if legend else 4)), shapes + legend, figure.title)


def _square(panels: list[Panel]) -> bool:
    return any(isinstance(panel, Heatmap) for panel in panels)


def _panel(panel: Panel, x: float, y: float, width: float, height: float, key: str, unit: str) -> list[Shape]:
    shapes: list[Shape] = [Text(x, y - 6, panel.title, 11, bold=True)]
    if isinstance(panel, Lines):
        return shapes + _curves(panel, x, y, width, height)
    kind, low, high = colours.limits(panel.values)
    rows, columns = panel.values.shape
    if rows != columns:  # cells stay square
        cell = min(width / columns, height / rows)
        width, height = cell * columns, cell * rows
    shapes.append(Raster(x, y, width, height, colours.levels(panel.values, low, high), kind, key))
    shapes.append(Box(x, y, width, height, stroke="line"))
    bound = f"0 – {short(high)}" if kind == "sequential" else f"±{short(high)}"
    title = _text_width(panel.title, 11)
    if title + _text_width(bound, 9) + 8 < width:
        shapes.append(Text(x + width, y - 6, bound, 9, "end", "muted"))
    if _fits(panel.rows, height):
        for i, name in enumerate(panel.rows):
            shapes.append(Text(x - 4, y + (i + 0.5) * height / rows + SMALL * 0.35, name, SMALL, "end", "muted"))
    if _fits(panel.columns, width):
        for j, name in enumerate(panel.columns):
            place = x + (j + 0.5) * width / columns + SMALL * 0.35
            shapes.append(Text(place, y + height + 5, name, SMALL, "end", "muted", upright=True))
    return shapes


def _curves(panel: Lines, x: float, y: float, width: float, height: float) -> list[Shape]:
    values = panel.values
    low, high = float(values.min()), float(values.max())
    if panel.log:
        positive = values[values > 0]
        low = float(positive.min()) / 2 if positive.size else 1e-3
        high = max(high, low * 10) * 1.2
    else:
        margin = 0.08 * ((high - low) or 1.0)
        low, high = low - margin, high + margin
    edges = (float(panel.x[0]), float(panel.x[-1]))
    frame = Frame(x, y, width, height, edges, (low, high), log_y=panel.log)
    y_ticks = log_ticks(low, high) if panel.log else ticks(low, high, 3)
    middle = sum(edges) / 2 if panel.steps else float(panel.x[len(panel.x) // 2])
    shapes = frame.draw(size=9, y_ticks=y_ticks, x_ticks=[edges[0], middle, edges[1]])
    for number, row in enumerate(panel.series.values()):
        clipped = np.maximum(row, low)
        if panel.steps:
            points = [(e, v) for a, b, v in zip(panel.x, panel.x[1:], clipped) for e in (a, b)]
        else:
            points = list(zip(panel.x, clipped))
        where = tuple(frame.point(float(a), float(b)) for a, b in points)
        one = len(panel.series) == 1
        stroke = "series0" if one or number else "muted"
        shapes.append(Line(where, stroke, 1.6, DASHES[0] if one or number else DASHES[2]))
    return shapes


def _legend(panels: list[Panel], x: float, y: float, unit: str) -> list[Shape]:
    """A bar of colours, or the names of the series."""
    lines = next((panel for panel in panels if isinstance(panel, Lines)), None)
    if lines is not None:
        shapes: list[Shape] = []
        if len(lines.series) > 1:
            for number, name in enumerate(lines.series):
                dash, stroke = (DASHES[0], "series0") if number else (DASHES[2], "muted")
                shapes += [Line(((x, y + 6), (x + 22, y + 6)), stroke, 1.8, dash), Text(x + 28, y + 10, name, 11)]
                x += 44 + _text_width(name, 11)
        return shapes
    kinds = {colours.limits(panel.values)[0] for panel in panels}
    shapes = []
    for kind in sorted(kinds, reverse=True):
        ends = ("0", "end of the panel's scale") if kind == "sequential" else ("−", "+ end of the panel's scale")
        start = x + _text_width(ends[0], SMALL) + 6
        shapes += [
            Text(start - 6, y + 9, ends[0], SMALL, "end", "muted"),
            Raster(start, y, 96, 10, np.arange(256, dtype=np.uint8)[None], kind),
            Text(start + 102, y + 9, f"{ends[1]} ({unit})", SMALL, fill="muted"),
        ]
        x = start + 116 + _text_width(f"{ends[1]} ({unit})", SMALL)
    return shapes
