"""A drawing as a list of shapes, written as SVG (by hand) or PNG (by pillow). Colours are names of :mod:`.colours`.

On a page, names become CSS variables, so that a drawing follows light and dark; in a file of its own they are plain.
"""

from __future__ import annotations

import base64
import io
import itertools
import struct
import zlib
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from tokenmix.report import colours

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DASHES = ("", "6 3", "2 3", "8 3 2 3")
SHAPES = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True)
class Shape:
    """What all shapes may carry to a page: text shown on hover, and the number of the series they belong to."""

    tip: str | None = field(default=None, kw_only=True)
    series: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Box(Shape):
    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Line(Shape):
    points: tuple[tuple[float, float], ...]
    stroke: str = "ink"
    width: float = 1.0
    dash: str = ""
    opacity: float = 1.0


@dataclass(frozen=True)
class Text(Shape):
    x: float
    y: float
    text: str
    size: float = 12
    anchor: str = "start"
    fill: str = "ink"
    bold: bool = False
    upright: bool = False  #: reads from bottom to top


@dataclass(frozen=True)
class Mark(Shape):
    x: float
    y: float
    shape: str = "circle"
    fill: str = "ink"
    size: float = 4.5


@dataclass(frozen=True)
class Raster(Shape):
    """A matrix as an image, a pixel per entry; `key` is the matrix's name on a page that shows its values."""

    x: float
    y: float
    width: float
    height: float
    levels: np.ndarray  #: uint8, places of the colour map
    map: str = "sequential"
    key: str | None = None


@dataclass
class Scene:
    """Shapes on a sheet.

    >>> Scene(10, 10, [Mark(5, 5)], "a dot").svg()[:4]
    '<svg'
    """

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)
    title: str = ""

    def svg(self, *, page: bool = False) -> str:
        """SVG text: for a page (colours by CSS variable, no background), or for a file of its own."""
        size = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        own = "" if page else f' xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{self.height:g}"'
        head = f'<svg{own} {size} role="img" aria-label="{escape(self.title)}" font-family="{escape(FONT)}">'
        paper = "" if page else f'<rect width="100%" height="100%" fill="{colour("paper", page)}"/>'
        return head + paper + "".join(_svg(shape, page) for shape in self.shapes) + "</svg>"

    def png(self, scale: float = 2.0) -> bytes:
        """A PNG file, `scale` pixels for each unit of the drawing."""
        return _paint(self, scale)


def colour(name: str, page: bool) -> str:
    """A colour's name as CSS: `ink`, `muted`, `line`, `paper`, `accent`, or `series3`."""
    if page:
        return f"var(--{name})"
    if name.startswith("series"):
        return colours.SERIES[int(name[6:]) % len(colours.SERIES)]
    return colours.INK[name]


def indexed_png(levels: np.ndarray, map_name: str) -> bytes:
    """A PNG of uint8 places in a colour map: header, palette, compressed rows. No library needed."""
    height, width = levels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each row opens with filter 0
    rows[:, 1:] = levels

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        chunk(b"IHDR", header),
        chunk(b"PLTE", colours.table(map_name).tobytes()),
        chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# ------------------------------------------------------------------------------------------------------------ SVG


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(shape: Shape, page: bool) -> str:
    extra = ""
    if page:
        extra += "" if shape.series is None else f' data-series="{shape.series}"'
        extra += "" if shape.tip is None else f' data-tip="{escape(shape.tip)}"'
    match shape:
        case Box():
            fill = "none" if shape.fill is None else colour(shape.fill, page)
            stroke = "" if shape.stroke is None else f' stroke="{colour(shape.stroke, page)}"'
            faint = "" if shape.opacity == 1 else f' opacity="{shape.opacity:g}"'
            return f'<rect {_place(shape)} fill="{fill}"{stroke}{faint}{extra}/>'
        case Line():
            points = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
            dash = f' stroke-dasharray="{shape.dash}"' if shape.dash else ""
            faint = "" if shape.opacity == 1 else f' opacity="{shape.opacity:g}"'
            return (
                f'<polyline points="{points}" fill="none" stroke="{colour(shape.stroke, page)}" '
                f'stroke-width="{shape.width:g}" stroke-linejoin="round"{dash}{faint}{extra}/>'
            )
        case Text():
            turn = f' transform="rotate(-90 {_number(shape.x)} {_number(shape.y)})"' if shape.upright else ""
            weight = ' font-weight="600"' if shape.bold else ""
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            return (
                f'<text x="{_number(shape.x)}" y="{_number(shape.y)}" font-size="{shape.size:g}"{anchor}{weight} '
                f'fill="{colour(shape.fill, page)}"{turn}{extra}>{escape(shape.text)}</text>'
            )
        case Mark():
            points = " ".join(f"{_number(x)},{_number(y)}" for x, y in _outline(shape))
            look = f'fill="{colour(shape.fill, page)}" stroke="{colour("paper", page)}" stroke-width="1"{extra}'
            if shape.shape == "circle":
                return f'<circle cx="{_number(shape.x)}" cy="{_number(shape.y)}" r="{shape.size:g}" {look}/>'
            return f'<polygon points="{points}" {look}/>'
        case Raster():
            data = base64.b64encode(indexed_png(shape.levels, shape.map)).decode()
            key = f' data-matrix="{escape(shape.key)}"' if page and shape.key else ""
            return (
                f'<image {_place(shape)} href="data:image/png;base64,{data}" preserveAspectRatio="none" '
                f'image-rendering="pixelated"{key}{extra}/>'
            )
    raise TypeError(f"no way to draw a {type(shape).__name__}")


def _place(shape: Any) -> str:
    return " ".join(f'{name}="{_number(getattr(shape, name))}"' for name in ("x", "y", "width", "height"))


def _outline(mark: Mark) -> list[tuple[float, float]]:
    r = mark.size
    shapes: dict[str, list[tuple[float, float]]] = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        "triangle": [(0, -1.25), (1.2, 0.95), (-1.2, 0.95)],
    }
    return [(mark.x + dx * r * 0.9, mark.y + dy * r * 0.9) for dx, dy in shapes.get(mark.shape, [])]


# ------------------------------------------------------------------------------------------------------------ PNG

FONTS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf", "arial.ttf", "Helvetica.ttc")
SMOOTH = 2  # drawn so many times larger and shrunk, for smooth edges


def _font(size: float) -> Any:
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, max(1, round(size)))
        except OSError:
            continue
    return ImageFont.load_default(size=size)


def _paint(scene: Scene, scale: float) -> bytes:
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ImportError("PNG files are drawn with pillow: pip install 'tokenmix[vision]'") from error
    s = scale * SMOOTH
    image = Image.new("RGB", (round(scene.width * s), round(scene.height * s)), colours.INK["paper"])
    draw = ImageDraw.Draw(image)
    paper = np.array(colours.rgb(colours.INK["paper"]), float)

    def ink(name: str, opacity: float = 1.0) -> tuple[int, ...]:
        mixed = opacity * np.array(colours.rgb(colour(name, page=False))) + (1 - opacity) * paper
        return tuple(int(channel) for channel in mixed.round())

    for shape in scene.shapes:
        match shape:
            case Box():
                edges = [shape.x * s, shape.y * s, (shape.x + shape.width) * s, (shape.y + shape.height) * s]
                fill = None if shape.fill is None else ink(shape.fill, shape.opacity)
                draw.rectangle(edges, fill, None if shape.stroke is None else ink(shape.stroke), round(s))
            case Line():
                for part in _dashed(shape.points, shape.dash):
                    ends = [(x * s, y * s) for x, y in part]
                    draw.line(ends, ink(shape.stroke, shape.opacity), max(1, round(shape.width * s)), joint="curve")
            case Mark() if shape.shape == "circle":
                r = shape.size
                edges = [(shape.x - r) * s, (shape.y - r) * s, (shape.x + r) * s, (shape.y + r) * s]
                draw.ellipse(edges, ink(shape.fill), ink("paper"), round(s))
            case Mark():
                draw.polygon([(x * s, y * s) for x, y in _outline(shape)], ink(shape.fill))
            case Raster():
                cells = Image.fromarray(colours.table(shape.map)[shape.levels])
                size = (max(1, round(shape.width * s)), max(1, round(shape.height * s)))
                image.paste(cells.resize(size, Image.Resampling.NEAREST), (round(shape.x * s), round(shape.y * s)))
            case Text():
                _write(image, draw, shape, s, ink(shape.fill))
    small = image.resize((round(scene.width * scale), round(scene.height * scale)), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    small.save(out, "PNG")
    return out.getvalue()


def _write(image: Any, draw: Any, text: Text, s: float, fill: tuple[int, ...]) -> None:
    from PIL import Image, ImageDraw

    font = _font(text.size * s)
    align = {"start": "l", "middle": "m", "end": "r"}[text.anchor]
    bold = round(text.size * s / 32) if text.bold else 0
    if not text.upright:
        draw.text((text.x * s, text.y * s), text.text, fill, font, anchor=f"{align}s", stroke_width=bold)
        return
    length = round(draw.textlength(text.text, font)) + 2 * bold + 2
    rise, fall = round(text.size * s), round(text.size * s * 0.4)
    strip = Image.new("L", (length, rise + fall), 0)
    ImageDraw.Draw(strip).text((1 + bold, rise), text.text, 255, font, anchor="ls", stroke_width=bold)
    turned = strip.transpose(Image.Transpose.ROTATE_90)
    shift = {"start": length, "middle": length / 2, "end": 0}[text.anchor]
    image.paste(fill, (round(text.x * s) - rise, round(text.y * s - shift)), turned)


def _dashed(points: tuple[tuple[float, float], ...], dash: str) -> list[list[tuple[float, float]]]:
    """A line cut into the strokes of a dash pattern."""
    if not dash or len(points) < 2:
        return [list(points)]
    pattern = [float(length) for length in dash.split()]
    parts, current, turn, left = [], [points[0]], 0, pattern[0]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = float(np.hypot(x1 - x0, y1 - y0))
        gone = 0.0
        while length - gone > left:
            gone += left
            cut = (x0 + (x1 - x0) * gone / length, y0 + (y1 - y0) * gone / length)
            if turn % 2 == 0:
                parts.append([*current, cut])
            turn, current = turn + 1, [cut]
            left = pattern[turn % len(pattern)]
        left -= length - gone
        current.append((x1, y1))
    if turn % 2 == 0:
        parts.append(current)
    return parts
