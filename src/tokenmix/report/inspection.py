"""The page of one run: every figure of the papers that the model has something for, and its matrices to go through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from tokenmix.report import figures
from tokenmix.report.axes import short
from tokenmix.report.figure import Figure
from tokenmix.report.look import Inputs, Sight, look
from tokenmix.report.page import explorer, explorer_data, figure_matrices, page, plain, plate
from tokenmix.report.runs import example_of, open_run

MATRIX_BYTES = 24_000_000
LONGEST = 256  # tokens of an input that nobody chose


def write_inspection(
    run: str | Path,
    out: str | Path | None = None,
    *,
    inputs: Inputs = None,
    target: str | None = None,
    png: bool = True,
) -> Path:
    """Look into a run: `out/index.html` and each figure as SVG and PNG beside it. By default `out` is `run/inspect`.

    Without `inputs` the model reads an example of the task it was trained on, or an empty input.

    >>> write_inspection("runs/scan", inputs="jump twice and walk left")
    PosixPath('runs/scan/inspect/index.html')
    """
    run = Path(run)
    model, tokenizer = open_run(run)
    settings, note = _settings(run), ""
    if inputs is None:
        inputs, target, note = _example(settings.get("data") or {}, model, tokenizer)
    sight = look(model, inputs, tokenizer=tokenizer, target=target, length=LONGEST)
    if not sight.matrices:
        raise ValueError(f"nothing to look into: the layer {model.config.layer!r} of {run} mixes no tokens")
    folder = Path(out) if out is not None else run / "inspect"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = list(drawable(model, sight, int(settings.get("seed") or 0)))
    plates = ""
    for figure in drawn:
        links = {}
        for ending in ("svg", "png") if png else ("svg",):
            try:
                figure.save(folder / f"{figure.name}.{ending}")
                links[ending.upper()] = f"{figure.name}.{ending}"
            except ImportError:  # pillow comes with an extra; the page does without
                continue
        plates += plate(figure, links)
    entry, cut = explorer_data(run.resolve().name, sight, MATRIX_BYTES)
    data = {"matrices": figure_matrices(drawn), "explorers": {"run": [entry] if entry["matrices"] else []}}
    cut = f'<div class="note"><p>To keep this page small, {escape(cut)}.</p></div>' if cut else ""
    body = (
        f'<header class="top"><p class="eyebrow">tokenmix inspect</p><h1>{escape(run.resolve().name)}</h1>'
        f'<p class="lead"><code>{escape(_layer(model))}</code></p>{_facts(model, sight)}{note}</header>'
        f'<main id="content"><section id="explore"><h2>What each token draws from</h2>'
        f'<p class="sub">{escape(_shown(sight))} Pick sublayer, layer and head; point at a token, or at a row of '
        f"the map, to see what it draws from. A click holds the token.</p>"
        f"{cut}{explorer('run') if entry['matrices'] else ''}</section>"
        f'<section id="figures"><h2>Figures of the papers</h2>{plates}</section>'
        f'<section id="configuration"><h2>Configuration</h2><details><summary>config.json</summary>'
        f"<pre>{escape(json.dumps(_config(model), indent=2, ensure_ascii=False))}</pre></details></section></main>"
        "<footer><p>This page makes no network request.</p></footer>"
    )
    page_file = folder / "index.html"
    page_file.write_text(page(f"{run.resolve().name} · tokenmix inspect", body, data), encoding="utf-8")
    return page_file


def drawable(model: Any, sight: Sight, seed: int = 0) -> Iterator[Figure]:
    """Every figure that this model has something for; `seed` is that of its initial weights."""
    stacks = list(dict.fromkeys(matrix.stack for matrix in sight.matrices))
    shared = any(matrix.persistent and "remix" not in matrix.terms() for matrix in sight.matrices)
    # what every input shares is shown at full length, not cut to this text
    whole = look(model, None, length=LONGEST) if shared and sight.grid is None else sight
    tries: list[Callable[[], Figure]] = []
    for stack in stacks:
        tries.append(partial(figures.remixer_memory, model, sight, stack=stack))
        if shared:
            tries.append(partial(figures.spatial_matrices, model, whole, stack=stack))
            tries.append(partial(figures.token_filters, model, whole, stack=stack))
        tries.append(partial(figures.tiny_attention, model, sight, stack=stack))
    tries += [partial(figures.patch_filters, model, sight), partial(figures.weight_histograms, model, sight, seed=seed)]
    for stack in stacks:
        if any(matrix.heads > 1 or not matrix.persistent for matrix in sight.pick(stack, kind="mixing")):
            tries.append(partial(figures.attention_maps, model, sight, stack=stack))  # else it is shown above
    tries.append(partial(figures.attention_maps, model, sight, stack="decoder", cross=True))
    names: set[str] = set()
    for make in tries:
        try:
            figure = make()
        except ValueError:  # this model has nothing for it
            continue
        if figure.name in names:  # the decoder's, after the encoder's
            figure = replace(figure, name=f"{figure.name}-decoder", title=f"{figure.title}, decoder")
        names.add(figure.name)
        yield figure


def _example(data: dict[str, Any], model: Any, tokenizer: Any) -> tuple[Inputs, str | None, str]:
    """An example of the task in a run's `data` settings, with a word on where it is from."""
    inputs, target = (None, None)
    if data.get("task") and (tokenizer is not None or model.config.body == "vision"):
        inputs, target = example_of(str(data["task"]), data.get("form"), None, data.get("folder"))
    if inputs is not None:
        option = "--image" if model.config.body == "vision" else "--text"
        said = f"An example of the task {data['task']}; choose another with {option}."
    else:
        said = "No input was given and no example of the run's task is here: the model read an empty input."
    return inputs, target, f'<div class="note"><p>{escape(said)}</p></div>'


def _settings(run: Path) -> dict[str, Any]:
    """What the run was trained with; empty for a model from elsewhere."""
    import yaml

    try:
        settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _layer(model: Any) -> str:
    config = model.config
    other = getattr(config, "decoder_layer", None)
    return config.layer if other in (None, config.layer) else f"{config.layer}; decoder: {other}"


def _facts(model: Any, sight: Sight) -> str:
    config = model.config
    facts = {
        "Body": config.body,
        "Layers": config.layers,
        "Width": config.d_model,
        "Heads": config.heads,
        "Parameters": short(sum(p.numel() for p in model.parameters())),
        "Tokens read": f"{len(sight.tokens)}" + (f" + {len(sight.target)}" if sight.target else ""),
    }
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{k}</dt><dd>{escape(plain(v))}</dd></div>" for k, v in facts.items())
        + "</dl>"
    )


def _shown(sight: Sight) -> str:
    if sight.grid is not None:
        return f"An image of {sight.grid[0]} × {sight.grid[0]} patches."
    text = " ".join(sight.tokens[:40]) + (" …" if len(sight.tokens) > 40 else "")
    return f"“{text}”."


def _config(model: Any) -> dict[str, Any]:
    return json.loads(model.config.to_json_string())
