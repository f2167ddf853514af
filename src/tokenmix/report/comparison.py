"""`report.html` of a comparison: the answer, the table, the charts, the matrices, and how to run it again."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tokenmix.report import charts
from tokenmix.report.axes import padded, short
from tokenmix.report.figure import Figure, Heatmap
from tokenmix.report.look import Sight, look
from tokenmix.report.page import HEAT, explorer, explorer_data, figure_matrices, page, pairs, plain, plate
from tokenmix.report.runs import example_of, open_run
from tokenmix.report.scene import Scene

logger = logging.getLogger(__name__)
Result = Mapping[str, Any]
MATRIX_BYTES = 1_100_000  # of a page below 2 MB
COMMAND_MISSING = "the command was not recorded"


def write_report(folder: str | Path, *, matrices: bool = True) -> Path:
    """Write `report.html` for `folder/comparison.json`, and its charts as SVG files in `folder/figures/`.

    The page stands on its own: it opens from disk, without network. With `matrices` the trained models are opened and
    shown one example; a run that cannot be opened is left out with a word on why.

    >>> write_report("runs/compare")
    PosixPath('runs/compare/report.html')
    """
    folder = Path(folder)
    source = folder / "comparison.json"
    try:
        result = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no comparison in {folder}: expected {source}, which `tokenmix compare` writes"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{source} is not JSON ({error}); run `tokenmix compare` again, finished runs are reused"
        ) from None
    if not isinstance(result, dict) or not isinstance(result.get("models"), list):
        raise ValueError(f"{source} is not a comparison: it has no list of models")
    data: dict[str, Any] = {"charts": {}, "matrices": {}, "explorers": {}}
    files = folder / "figures"
    sections = [
        ("results", "Results", _table(result)),
        ("learning", "Learning curves", _learning(result, data, files)),
        ("cost", "Metric against cost", _cost(result, files)),
        ("categories", "Per category", _categories(result)),
        ("mixing", "What the models mix", _mixing(result, folder, data, files) if matrices else ""),
        ("again", "Run it again", _again(result)),
    ]
    kept = [section for section in sections if section[2]]
    contents = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in kept)
    body = (
        f'<header class="top">{_head(result)}<nav class="contents" aria-label="Contents">{contents}</nav></header>'
        + '<main id="content">'
        + "".join(f'<section id="{key}"><h2>{title}</h2>{html}</section>' for key, title, html in kept)
        + f"</main><footer>{_foot(result)}</footer>"
    )
    out = folder / "report.html"
    out.write_text(
        page(f"{result.get('task', 'comparison')}: {len(result['models'])} models compared", body, data), "utf-8"
    )
    return out


# ------------------------------------------------------------------------------------------------------------ words


def _decimals(result: Result) -> int:
    means = [abs(m["mean"]) for m in result["models"] if m.get("mean") is not None]
    return 1 if means and max(means) >= 10 else 3


def _number(value: float | None, digits: int, sign: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def _ranked(result: Result) -> list[Mapping[str, Any]]:
    """Models with a result, the best first."""
    done = [m for m in result["models"] if m.get("mean") is not None]
    return sorted(done, key=lambda m: m["mean"], reverse=bool(result.get("higher_is_better", True)))


def _spread(model: Mapping[str, Any], digits: int) -> str:
    mean = _number(model["mean"], digits)
    return f"{mean} ± {_number(model['deviation'], digits)}" if model.get("deviation") else mean


def _head(result: Result) -> str:
    task, metric = str(result.get("task", "")), charts.metric_name(str(result.get("metric", "metric")))
    digits, ranked = _decimals(result), _ranked(result)
    seeds = max((len(m["runs"]) for m in result["models"]), default=0)
    if ranked:
        best = ranked[0]
        title = f"{escape(str(best['name']))} is best on {escape(task)}"
        lead = escape(_verdict(result, best, ranked, metric, digits, seeds))
    else:
        title, lead = f"{escape(task)}: no run has finished", "The table below says why."
    facts = {
        "Task": f"{task} ({result['split']})" if result.get("split") else task,
        "Metric": metric + ("" if result.get("higher_is_better", True) else ", lower is better"),
        "Budget": _budget(result.get("budget") or {}),
        "Sizes matched by": (result.get("match") or {}).get("rule") or "nothing",
        "Models × seeds": f"{len(result['models'])} × {seeds}",
        "Hardware": _hardware(result.get("hardware")),
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{escape(plain(value))}</dd></div>" for key, value in facts.items())
    note = f'<div class="note"><p>{escape(str(result["note"]))}</p></div>' if result.get("note") else ""
    eyebrow = '<p class="eyebrow">tokenmix compare</p>'
    return f'{eyebrow}<h1>{title}</h1><p class="lead">{lead}</p>{note}<dl class="facts">{listed}</dl>'


def _verdict(
    result: Result, best: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]], metric: str, digits: int, seeds: int
) -> str:
    """The answer in two sentences."""
    over = f" over {seeds} seeds" if seeds > 1 else ", one seed"
    said = f"It reaches {_spread(best, digits)} {metric}{over}"
    baseline = next((m for m in ranked if m["name"] == result.get("baseline")), None)
    if baseline is not None and best is not baseline and best.get("difference") is not None:
        gap = _number(best["difference"], digits, sign=True)
        said += f", {gap} against the baseline {baseline['name']} ({_spread(baseline, digits)})"
        if best.get("interval"):
            low, high = (_number(edge, digits, sign=True) for edge in best["interval"])
            said += f"; the bootstrap interval of the difference is {low} to {high}"
        if best.get("significant") is not None:
            said += ", which is significant." if best["significant"] else ", so the two cannot be told apart."
        else:
            said += ". One seed alone does not say how sure that is."
    elif baseline is best and len(ranked) > 1:
        behind = [m for m in ranked[1:] if m.get("significant")]
        said += f"; it is the baseline, and {len(behind)} of {len(ranked) - 1} others fall significantly behind."
    else:
        said += "."
    return said


def _budget(budget: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{short(v) if isinstance(v, (int, float)) else v} {k.replace('_', ' ')}" for k, v in budget.items() if v
    )


def _hardware(hardware: Any) -> str:
    if not isinstance(hardware, Mapping):
        return plain(hardware)
    gpus = hardware.get("gpus") or []
    return (
        ", ".join(map(str, gpus)) if gpus else f"{hardware.get('cpus', '?')} CPU cores, {hardware.get('machine', '')}"
    )


# ------------------------------------------------------------------------------------------------------------ table


def _table(result: Result) -> str:
    models, digits = result["models"], _decimals(result)
    metric, higher = str(result.get("metric", "metric")), bool(result.get("higher_is_better", True))
    scores = [v for m in models for v in _scores(m, metric)]
    span = padded(scores, 0.05) if scores else (0.0, 1.0)
    columns = [  # title, hint, order of a first click
        ("Model", "", "ascending"),
        (charts.metric_name(metric), "mean ± standard deviation over seeds", "descending" if higher else "ascending"),
        ("Seeds", "each seed's result on a common scale; the line is the mean", ""),
        ("Difference", "to the baseline, with its bootstrap interval", "descending" if higher else "ascending"),
        ("Parameters", "", "ascending"),
        ("FLOPs / step", "one training step: forward and backward of a batch", "ascending"),
        ("Steps / s", "", "descending"),
        ("Memory", "peak, in bytes", "ascending"),
    ]
    head = ""
    best_first = columns[1][2]
    for number, (title, hint, first) in enumerate(columns):
        tip = f' data-tip="{escape(hint)}"' if hint else ""
        if not first:
            head += f'<th scope="col"{tip}>{escape(title)}</th>'
            continue
        order = f' aria-sort="{best_first}"' if number == 1 else ""
        button = f'<button type="button" class="sort">{escape(title)}</button>'
        head += f'<th scope="col" data-first="{first}"{order}{tip}>{button}</th>'
    ranked = _ranked(result)
    rows = [*ranked, *(m for m in models if m.get("mean") is None)]
    best = ranked[0]["name"] if ranked else None
    body = "".join(_row(result, models.index(m), m, digits, span, m["name"] == best) for m in rows)
    caption = (
        "Click a heading to sort. The difference is to the baseline "
        f"<b>{escape(str(result.get('baseline', '')))}</b>; its interval is a bootstrap over "
        f"{escape(_over(models))}."
    )
    table = (
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
    return f'<p class="sub">{caption}</p>{table}{_failures(models)}'


def _over(models: Sequence[Mapping[str, Any]]) -> str:
    return next((str(m["over"]) for m in models if m.get("over")), "seeds")


def _scores(model: Mapping[str, Any], metric: str) -> list[float]:
    values = [run["metrics"].get(metric) for run in model["runs"] if run.get("status") == "done" and run.get("metrics")]
    return [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]


def _row(
    result: Result, number: int, model: Mapping[str, Any], digits: int, span: tuple[float, float], best: bool
) -> str:
    metric = str(result.get("metric", "metric"))
    scores = _scores(model, metric)
    seeds = [f"seed {run['seed']}" for run in model["runs"] if run.get("status") == "done"]
    strip = (
        charts.seeds_strip(number, scores, model["mean"], span, seeds) if scores and model["mean"] is not None else ""
    )
    tags = ""
    if model["name"] == result.get("baseline"):
        tags += ' <span class="tag">baseline</span>'
    if best:
        tags += ' <span class="tag good">best</span>'
    failed = sum(run.get("status") == "failed" for run in model["runs"])
    if failed:
        tags += f' <span class="tag bad">{failed} of {len(model["runs"])} failed</span>'
    running = sum(run.get("status") == "running" for run in model["runs"])
    if running:
        tags += f' <span class="tag">{running} of {len(model["runs"])} not finished</span>'
    layer = str(model.get("layer") or "")
    if model.get("decoder_layer") not in (None, "", model.get("layer")):
        layer += f"; decoder: {model['decoder_layer']}"
    said = f'<span class="layer"><code>{escape(layer)}</code></span>' if layer and layer != model["name"] else ""
    name = f'<div class="model">{charts.swatch(number)}<span class="what">{escape(str(model["name"]))}{tags}{said}</span></div>'
    mean = "–"
    if model.get("mean") is not None:
        spread = f' <span class="dev">± {_number(model["deviation"], digits)}</span>' if model.get("deviation") else ""
        mean = _number(model["mean"], digits) + spread
    gap = "–"
    if model.get("difference") is not None:
        gap = _number(model["difference"], digits, sign=True)
        if model.get("interval"):
            low, high = (_number(edge, digits, sign=True) for edge in model["interval"])
            gap += f' <span class="dev">[{low}, {high}]</span>'
        if model.get("significant") is not None:
            better = (model["difference"] > 0) == bool(result.get("higher_is_better", True))
            kind, word = (
                (("good" if better else "bad"), "significant") if model["significant"] else ("", "not significant")
            )
            gap += f' <span class="tag {kind}">{word}</span>'
    cells = [
        (model["name"], name, "th"),
        (model.get("mean"), mean, "metric"),
        (None, strip, ""),
        (model.get("difference"), gap, ""),
        *(
            (model.get(key), escape(short(model.get(key))), "")
            for key in ("parameters", "flops_step", "steps_per_second")
        ),
        (model.get("memory_bytes"), escape(_memory(model.get("memory_bytes"))), ""),
    ]
    html = ""
    for value, shown, kind in cells:
        stored = "" if value is None else escape(str(value))
        if kind == "th":
            html += f'<th scope="row" data-value="{stored}">{shown}</th>'
        else:
            html += f'<td{f" class={kind}" if kind else ""} data-value="{stored}">{shown}</td>'
    return f"<tr>{html}</tr>"


def _memory(size: float | None) -> str:
    if size is None:
        return "–"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _failures(models: Sequence[Mapping[str, Any]]) -> str:
    html = ""
    for model in models:
        for run in model["runs"]:
            if run.get("status") == "failed":
                why = escape(str(run.get("error") or "no reason was recorded"))
                title = f"{escape(str(model['name']))}, seed {escape(str(run.get('seed')))}, failed"
                html += f'<div class="note bad"><p><b>{title}</b></p><pre class="wrap">{why}</pre></div>'
    return html


# ----------------------------------------------------------------------------------------------------------- charts


def _chart(
    key: str, scene: Scene, files: Path, data: dict[str, Any] | None = None, hover: dict[str, Any] | None = None
) -> str:
    """A chart on the page, and as a file of its own."""
    files.mkdir(parents=True, exist_ok=True)
    (files / f"{key}.svg").write_text(scene.svg(), encoding="utf-8")
    if data is not None and hover is not None:
        data["charts"][key] = hover
    link = f'<figcaption>{escape(scene.title)}. <a href="figures/{key}.svg">SVG</a></figcaption>'
    return f'<figure class="chart" data-chart="{key}">{scene.svg(page=True)}{link}</figure>'


def _learning(result: Result, data: dict[str, Any], files: Path) -> str:
    models, metric = result["models"], str(result.get("metric", "metric"))
    html = ""
    for what in ("metric", "loss"):
        found = charts.curves(models, what, metric, bool(result.get("higher_is_better", True)))
        if found is not None:
            html += _chart(f"learning-{what}", found[0], files, data, found[1])
    if not html:
        return ""
    many = max(len(m["runs"]) for m in models) > 1
    sub = "Thick lines are the mean over seeds, thin lines single seeds. " if many else ""
    sub += "Point at a step to read the values; a model's button hides it."
    return f'<p class="sub">{sub}</p>{charts.legend(models)}<div class="charts">{html}</div>'


def _cost(result: Result, files: Path) -> str:
    metric = str(result.get("metric", "metric"))
    html = ""
    for key, label in (("parameters", "parameters"), ("flops_step", "FLOPs per training step")):
        scene = charts.against_cost(result["models"], key, label, metric)
        if scene is not None:
            html += _chart(f"cost-{key.replace('_', '-')}", scene, files)
    if not html:
        return ""
    sub = (
        "Bars are one standard deviation over seeds. Better and cheaper is up"
        if result.get("higher_is_better", True)
        else "Better and cheaper is down"
    )
    return f'<p class="sub">{sub} and to the left.</p><div class="charts">{html}</div>'


def _categories(result: Result) -> str:
    """Categories down, models across: the mean over seeds, coloured."""
    models = [m for m in result["models"] if any(run.get("categories") for run in m["runs"])]
    names = list(dict.fromkeys(name for m in models for run in m["runs"] for name in run.get("categories") or {}))
    if not names:
        return ""
    means: dict[tuple[str, int], float] = {}
    for column, model in enumerate(models):
        for name in names:
            got = [run["categories"][name] for run in model["runs"] if name in (run.get("categories") or {})]
            got = [float(v) for v in got if isinstance(v, (int, float)) and math.isfinite(v)]
            if got:
                means[name, column] = sum(got) / len(got)
    if not means:
        return ""
    low, high = min(means.values()), max(means.values())
    digits = 1 if high >= 10 else 3
    if result.get("metric", "").startswith(charts.PERCENT):
        low, high = 0.0, 100.0
    better = "descending" if result.get("higher_is_better", True) else "ascending"
    head = '<th scope="col" data-first="ascending"><button type="button" class="sort">Category</button></th>' + "".join(
        f'<th scope="col" data-first="{better}"><button type="button" class="sort">{escape(str(m["name"]))}</button></th>'
        for m in models
    )
    rows = ""
    for name in names:
        cells = ""
        for column in range(len(models)):
            value = means.get((name, column))
            if value is None:
                cells += '<td data-value="">–</td>'
                continue
            step = min(HEAT - 1, max(0, round((value - low) / ((high - low) or 1) * (HEAT - 1))))
            cells += f'<td class="q{step}" data-value="{value}">{_number(value, digits)}</td>'
        rows += f'<tr><th scope="row" data-value="{escape(name)}">{escape(name)}</th>{cells}</tr>'
    sub = f'<p class="sub">{escape(charts.metric_name(str(result.get("metric", "metric"))))} by category, mean over seeds.</p>'
    return f'{sub}<div class="scroll"><table class="sortable heat"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


# --------------------------------------------------------------------------------------------------------- matrices


def _mixing(result: Result, folder: Path, data: dict[str, Any], files: Path) -> str:
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
        except (OSError, ValueError, ImportError, RuntimeError) as error:
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
    panels = []
    for name, sight in seen:
        own = [m for m in sight.matrices if not m.cross]
        middle = (max(m.layer for m in own) + 1) // 2
        matrix = next(m for m in own if m.layer == middle)
        panels.append(Heatmap(name if len(name) <= 30 else name[:29] + "…", matrix.mean))
    rows = tuple(tuple(panels[k : k + 4]) for k in range(0, len(panels), 4))
    return Figure(
        "mixing-matrices",
        "Side by side",
        "The first mixing sublayer of the middle layer of each model, mean of the heads, for the example above.",
        rows,
        "draws from token (position j)",
        "token (position i)",
        size=min(226.0, 960.0 / min(4, len(panels)) - 24),
    )


def _run_folder(folder: Path, run: str) -> Path:
    """A run's folder, also after the comparison has been moved."""
    places = [folder / "runs" / Path(run).name, folder / run, Path(run)]
    return next((place for place in places if (place / "config.json").exists()), Path(run))


# ------------------------------------------------------------------------------------------------------------ again


def _again(result: Result) -> str:
    command = escape(str(result.get("command") or COMMAND_MISSING))
    html = (
        '<p class="sub">The same command in the same folder reuses finished runs; elsewhere it repeats them.</p>'
        f'<div class="command"><button type="button" data-copy>Copy</button><pre class="wrap">{command}</pre></div>'
    )
    for model in result["models"]:
        runs = "".join(
            f"<dt>seed {escape(str(run.get('seed')))}</dt><dd>{escape(str(run.get('status')))}, "
            f"{escape(short(run.get('steps')))} steps in {escape(_seconds(run.get('seconds')))}: "
            f"<code>{escape(str(run.get('folder')))}</code></dd>"
            for run in model["runs"]
        )
        config = json.dumps(model.get("config") or {}, indent=2, ensure_ascii=False)
        html += (
            f"<details><summary>{escape(str(model['name']))}</summary>"
            f'<dl class="pairs">{runs}</dl><pre>{escape(config)}</pre></details>'
        )
    for title, key in (
        ("Budget", "budget"),
        ("Match", "match"),
        ("Settings", "settings"),
        ("Versions", "versions"),
        ("Hardware", "hardware"),
    ):
        value = result.get(key)
        if value:
            shown = pairs(value) if isinstance(value, Mapping) else f"<p>{escape(plain(value))}</p>"
            html += f"<details><summary>{title}</summary>{shown}</details>"
    return html


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _foot(result: Result) -> str:
    versions = result.get("versions") or {}
    made = " ".join(f"{name} {versions[name]}" for name in ("tokenmix", "torch", "transformers") if name in versions)
    return f"<p>{escape(str(result.get('created', '')))} · {escape(made)} · this page makes no network request.</p>"
