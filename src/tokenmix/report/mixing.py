"""What the trained models of a comparison mix: all of them shown the same example."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tokenmix.report.figure import Figure, Heatmap
from tokenmix.report.look import Sight, look
from tokenmix.report.page import explorer, explorer_data, figure_matrices, plate
from tokenmix.report.runs import example_of, open_run

logger = logging.getLogger(__name__)
MATRIX_BYTES = 1_100_000  # of a page below 2 MB


def mixing_section(result: Mapping[str, Any], folder: Path, data: dict[str, Any], files: Path) -> str:
    """The first finished seed of each model, shown the same example."""
    given = result.get("example") or {}
    inputs, target = given.get("text"), given.get("target")
    if inputs is None:
        where = ((result.get("settings") or {}).get("data") or {}).get("folder")
        inputs, target = example_of(str(result.get("task")), result.get("form"), result.get("split"), where)
    elif isinstance(inputs, list):
        inputs = tuple(inputs)
    seen: list[tuple[str, Sight]] = []
    said: list[str] = []
    for model in result["models"]:
        run = next((run for run in model["runs"] if run.get("status") == "done" and run.get("folder")), None)
        if run is None:
            continue
        try:
            trained, tokenizer = open_run(_run_folder(folder, str(run["folder"])))
            if inputs is None and trained.config.body != "vision":
                sight = look(trained, None, length=min(32, trained.config.max_length))
            else:
                sight = look(trained, inputs, tokenizer=tokenizer, target=target)
        except Exception as error:  # a page without this model's matrices is better than no page
            logger.warning("the mixing matrices of %s are not in the report: %s", model["name"], error)
            said.append(f"{model['name']}: not shown ({error}).")
            continue
        if sight.matrices:
            seen.append((str(model["name"]), sight))
        else:
            said.append(f"{model['name']}: mixes no tokens.")
    if not seen:
        return "".join(f'<div class="note"><p>{escape(text)}</p></div>' for text in said)
    entries = []
    for name, sight in seen:
        entry, cut = explorer_data(name, sight, MATRIX_BYTES // len(seen))
        if entry["matrices"]:
            entries.append(entry)
        if cut:
            said.append(f"{name}: to keep this page small, {cut}; `tokenmix inspect` shows all.")
    gallery = _gallery(seen)
    gallery.save(files / f"{gallery.name}.svg")
    data["matrices"] |= figure_matrices([gallery])
    data["explorers"]["models"] = entries
    sub = "Row i shows what token i draws from each token. All models read the same example"
    sub += (
        f": “{' / '.join(inputs) if isinstance(inputs, tuple) else inputs}”."
        if isinstance(inputs, (str, tuple))
        else "."
    )
    notes = "".join(f'<div class="note"><p>{escape(text)}</p></div>' for text in said)
    plates = plate(gallery, {"SVG": f"figures/{gallery.name}.svg"})
    return f'<p class="sub">{escape(sub)}</p>{explorer("models") if entries else ""}{notes}<br>{plates}'


def _gallery(seen: Sequence[tuple[str, Sight]]) -> Figure:
    """One matrix per model: the first that mixes tokens, at the middle layer, mean of the heads."""
    wide = len(seen) if len(seen) <= 6 else 5
    panels, room = [], int((1010.0 / wide - 22) / 7.5)
    for name, sight in seen:
        own = [m for m in sight.matrices if not m.cross]
        middle = (max(m.layer for m in own) + 1) // 2
        matrix = next(m for m in own if m.layer == middle)
        panels.append(
            Heatmap(name if len(name) <= room else name[: room - 1] + "…", matrix.mean, matrix.rows, matrix.columns)
        )
    rows = tuple(tuple(panels[k : k + wide]) for k in range(0, len(panels), wide))
    return Figure(
        "mixing-matrices",
        "Side by side",
        "The first mixing sublayer of the middle layer of each model, mean of the heads, for the example above.",
        rows,
        "draws from token (position j)",
        "token (position i)",
    ).sized(226)


def _run_folder(folder: Path, run: str) -> Path:
    """A run's folder, also after the comparison has been moved."""
    places = [folder / "runs" / Path(run).name, folder / run, Path(run)]
    return next((place for place in places if (place / "config.json").exists()), Path(run))
