"""A page in one file: no request to anywhere, a content security policy that would forbid one, text from data escaped.

The shell is `templates/page.html`, its looks `page.css`, what it can do `page.js`. Scripts and styles are allowed by
their hash alone; there are no inline handlers and no inline styles. Data travels as JSON in a block that is not run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

import tokenmix
from tokenmix.report import colours
from tokenmix.report.figure import Figure, Heatmap
from tokenmix.report.look import Matrix, Sight

#: other colours of a page: a soft background, good and bad
EXTRA = {"soft": "#f5f7f9", "good": "#00704f", "bad": "#c2410c"}
EXTRA_DARK = {"soft": "#1a232d", "good": "#3fd0a4", "bad": "#ff9a5c"}
HEAT = 11  # steps of colour in a table of results


def page(title: str, body: str, data: Mapping[str, Any] | None = None) -> str:
    """A whole page around an HTML `body`; `data` is what the script reads.

    >>> "Content-Security-Policy" in page("hello", "<main>world</main>")
    True
    """
    style = palette() + _template("page.css")
    script = _template("page.js")
    everything = {"maps": colours.MAPS, "charts": {}, "matrices": {}, "explorers": {}, **(data or {})}
    parts = {
        "policy": escape(policy(script, style)),
        "version": escape(tokenmix.__version__),
        "title": escape(title),
        "style": style,
        "body": body,
        "data": embedded(everything),
        "script": script,
    }
    # one pass: what stands inside a part is never looked at again
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _template("page.html"))


def policy(script: str, style: str) -> str:
    """Nothing from anywhere, but this script, this style and images written in the page."""

    def allowed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {allowed(script)}; style-src {allowed(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@functools.cache
def palette() -> str:
    """The colours of :mod:`.colours` as CSS: light, dark where the reader's system is dark, light again on paper."""

    def block(inks: Mapping[str, str], series: Iterable[str]) -> str:
        named = {**inks, **{f"series{number}": colour for number, colour in enumerate(series)}}
        return ":root{" + "".join(f"--{name}:{colour};" for name, colour in named.items()) + "}"

    heat = ""
    table = colours.table("sequential")[np.linspace(0, 255, HEAT).round().astype(int)]
    for number, (colour, light) in enumerate(zip(table, colours.lightness(table))):
        heat += f".q{number}{{background:rgb({','.join(map(str, colour))});color:{'#111' if light > 55 else '#fff'}}}"
    dark = block({**colours.INK_DARK, **EXTRA_DARK}, colours.SERIES_DARK)
    light = block({**colours.INK, **EXTRA}, colours.SERIES)
    return f"{light}@media screen and (prefers-color-scheme: dark){{{dark}}}{heat}\n"


@functools.cache
def _template(name: str) -> str:
    return files("tokenmix.report").joinpath("templates", name).read_text(encoding="utf-8")


# -------------------------------------------------------------------------------------------------------- matrices


def packed(values: np.ndarray) -> dict[str, Any]:
    """Numbers as 65,536 even steps between the smallest and the largest, two bytes each, as text.

    >>> unpacked(packed(np.array([[0.0, 1.0]]))).tolist()
    [[0.0, 1.0]]
    """
    values = np.nan_to_num(np.asarray(values, np.float64))
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    steps = np.zeros(values.shape) if high == low else (values - low) / (high - low) * 65535
    bits = base64.b64encode(np.rint(steps).astype("<u2").tobytes()).decode()
    return {"shape": list(values.shape), "low": low, "high": high, "bits": bits}


def unpacked(data: Mapping[str, Any]) -> np.ndarray:
    """The way back, as the page's script does it."""
    steps = np.frombuffer(base64.b64decode(data["bits"]), "<u2").reshape(data["shape"])
    return data["low"] + steps * ((data["high"] - data["low"]) / 65535)


def figure_matrices(figures: Iterable[Figure]) -> dict[str, Any]:
    """Every heatmap's numbers, so that a page can show the one under the pointer."""
    return {
        figure.matrix_key(i, j): {**packed(panel.values), "rows": panel.rows, "columns": panel.columns}
        for figure in figures
        for i, row in enumerate(figure.panels)
        for j, panel in enumerate(row)
        if isinstance(panel, Heatmap)
    }


def explorer_data(name: str, sight: Sight, budget: int) -> tuple[dict[str, Any], str]:
    """A model's matrices for the explorer within `budget` bytes, and a word on what had to be left out."""
    matrices, said = fitted(sight.matrices, budget)
    labels: dict[tuple[str, int], str] = {}
    tokens: list[tuple[str, ...]] = []
    entries = []
    for matrix, mean in matrices:
        for names in (matrix.rows, matrix.columns):
            if names not in tokens:
                tokens.append(names)
        place = (matrix.label, matrix.sublayer)
        same = sorted({number for text, number in [*labels, place] if text == matrix.label})
        labels[place] = matrix.label if len(same) == 1 else f"{matrix.label} ({same.index(matrix.sublayer) + 1})"
        values = matrix.mean[None] if mean else matrix.values
        entries.append(
            {
                "label": labels[place],
                "layer": matrix.layer,
                "mean": mean,
                "rows": tokens.index(matrix.rows),
                "columns": tokens.index(matrix.columns),
                "packed": packed(values),
            }
        )
    return {"name": name, "tokens": tokens, "grid": sight.grid, "matrices": entries}, said


def fitted(matrices: Sequence[Matrix], budget: int) -> tuple[list[tuple[Matrix, bool]], str]:
    """All matrices, or the mean of their heads, or that of three layers: what fits `budget` bytes."""
    whole = [(matrix, False) for matrix in matrices]
    means = [(matrix, matrix.heads > 1) for matrix in matrices]
    depth = max((matrix.layer for matrix in matrices), default=1)
    some = {1, (depth + 1) // 2, depth}
    three = [(matrix, mean) for matrix, mean in means if matrix.layer in some]
    ways = (
        (whole, ""),
        (means, "the heads are averaged"),
        (three, f"the heads are averaged and only layers {', '.join(map(str, sorted(some)))} are kept"),
    )
    for chosen, said in ways:
        if sum(_bytes(matrix, mean) for matrix, mean in chosen) <= budget:
            return chosen, said
    return [], "the matrices are too large for this page"


def _bytes(matrix: Matrix, mean: bool) -> int:
    values = matrix.values.size // (matrix.heads if mean else 1)
    return values * 8 // 3 + 120


# ------------------------------------------------------------------------------------------------------------ parts


def explorer(key: str) -> str:
    """The frame of the interactive view; the script fills it from `explorers[key]`."""
    controls = "".join(
        f'<label>{text}<select data-part="{name}"></select></label>'
        for name, text in (("model", "Model"), ("kind", "Sublayer"), ("layer", "Layer"), ("head", "Head"))
    )
    return f"""<div class="explorer" data-explorer="{escape(key)}">
<div class="controls">{controls}</div>
<div class="views">
<div><canvas data-part="map" role="img" width="400" height="400"></canvas>
<p class="range"><span data-part="low"></span><canvas data-part="bar" width="120" height="10"></canvas>
<span data-part="high"></span> mixing weight</p></div>
<div><h3>Pick a token</h3>
<div class="tokens" data-part="asking"></div>
<h3><span data-part="asker"></span> draws from</h3>
<div class="tokens" data-part="answers"></div>
<div class="bars" data-part="bars"></div></div>
</div></div>"""


def plate(figure: Figure, links: Mapping[str, str] | None = None) -> str:
    """A figure on a page: its title, the drawing, the caption, and links to it as files."""
    scene = figure.svg(page=True)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', scene)
    scene = scene.replace("<svg ", f'<svg width="{size[1]}" height="{size[2]}" ', 1) if size else scene
    shown = "".join(f'<a href="{escape(where)}">{escape(text)}</a>' for text, where in (links or {}).items())
    return (
        f'<figure class="plate" id="{escape(figure.name)}"><h3>{escape(figure.title)}</h3>'
        f'<div class="drawing">{scene}</div><figcaption>{escape(figure.caption)}{shown}</figcaption></figure>'
    )


def pairs(values: Mapping[str, Any]) -> str:
    """A list of names and values; what is nested is written as JSON."""
    rows = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(plain(value))}</dd>" for key, value in values.items())
    return f'<dl class="pairs">{rows}</dl>'


def plain(value: Any) -> str:
    """A value as text for a reader."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)) and all(not isinstance(item, (dict, list)) for item in value):
        return ", ".join(plain(item) for item in value) or "–"
    return json.dumps(value, ensure_ascii=False)


def figure_page(figures: Sequence[Figure], title: str, lead: str = "") -> str:
    """Figures as a page of their own."""
    plates = "".join(plate(figure) for figure in figures)
    intro = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    main = f'<main id="content"><section>{plates}</section></main>'
    body = f'<header class="top"><h1>{escape(title)}</h1>{intro}</header>{main}'
    return page(title, body, {"matrices": figure_matrices(figures)})
