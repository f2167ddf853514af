"""Carries out a recipe at a scale, puts our numbers beside the paper's, and says which claims hold.

>>> result = reproduce("synthesizer-table-7", "bench", out="runs/reproduce")
>>> [(claim["text"], claim["verdict"]) for claim in result["claims"]]
[('FR is about as good as Linformer on news', 'holds'), …]
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tokenmix.compare.comparison import compare, hardware, versions
from tokenmix.compare.live import Live
from tokenmix.compare.plan import Contender, Judging, slug
from tokenmix.data.shard_writer import write_json
from tokenmix.models import TokenmixConfig, preset_config
from tokenmix.naming import unknown
from tokenmix.recipes.recipe import Recipe, Row, Scale, Stage, get_recipe
from tokenmix.recipes.result import (
    complete,
    fill,
    make_result,
    measured_numbers,
    measured_runs,
    profiled_numbers,
    read_result,
    scaling_figure,
    shortened,
)
from tokenmix.training.config import merge
from tokenmix.training.faults import FolderLock

logger = logging.getLogger(__name__)


# -------------------------------------------------------------------------------------------------- models of a recipe


def contender_of(row: Row, scale: Scale, stage: Stage, name: str) -> Contender:
    """A row's model at a scale: its preset, or its layer at the scale's sizes."""
    if name == "paper" or stage.original:
        preset = stage.presets.get(row.name, row.preset)
        return Contender(row.name, {"name": preset, "options": dict(row.changes)})
    encoder, semicolon, decoder = str(row.layer).partition(";")
    if stage.feed_forward is not None:
        encoder, decoder = (
            " | ".join([*part.split("|")[:-1], stage.feed_forward]) if part else "" for part in (encoder, decoder)
        )
    options: dict[str, Any] = {**scale.sizes, **row.options}
    sizes = dict(options)
    for option, factor in row.multiples.items():
        base = sizes.get(option, sizes.get("layers") if option == "decoder_layers" else None)
        if base is None:
            raise ValueError(f"{row.name}: the scale has no {option} to multiply")
        unit = 1
        if option == "d_model":
            unit = 8 * max(1, options.get("heads", 1)) if base >= 128 else max(2, options.get("heads", 1))
        elif option == "d_ff" and base >= 128:
            unit = 8  # what matrix units like
        options[option] = max(unit, round(base * factor / unit) * unit)
    if semicolon:
        options["decoder_layer"] = decoder.strip()
    body = stage.body or scale.body
    return Contender(row.name, {"layer": encoder.strip(), "options": options, **({"body": body} if body else {})})


def contenders_of(
    recipe: Recipe,
    scale: str,
    stage: Stage,
    only: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> list[Contender]:
    """The models of a stage, the baseline first; with ``only``, those rows and the baseline.

    `model.options` of ``settings`` stand in place of the scale's sizes; what is a row's own stays.
    """
    chosen, given = recipe.scale(scale), ((settings or {}).get("model") or {}).get("options") or {}
    chosen = replace(chosen, sizes={option: given.get(option, size) for option, size in chosen.sizes.items()})
    wanted = {recipe.row(name).name for name in (*only, recipe.baseline)} if only else None
    rows = [row for row in recipe.rows if row.runs("paper" if stage.original else scale)]
    rows = [row for row in rows if wanted is None or row.name in wanted]
    rows.sort(key=lambda row: row.name != recipe.baseline)
    return [contender_of(row, chosen, stage, scale) for row in rows]


def stages_of(recipe: Recipe, scale: str, parts: Sequence[str] = ()) -> list[Stage]:
    """The stages of a scale; with ``parts``, those alone."""
    stages = {stage.name: stage for stage in recipe.scale(scale).stages}
    for name in parts:
        if name not in stages:
            raise unknown(f"part of {recipe.name}", name, stages)
        if (before := stages[name].after) and before not in parts:
            raise ValueError(f"{name} goes on from {before}: name both, --part {before} --part {name}")
    return [stage for stage in stages.values() if not parts or stage.name in parts]


def config_of(entry: Contender, body: str | None = None) -> TokenmixConfig:
    """A contender's configuration, its vocabulary that of its preset (or a small one)."""
    model = entry.model
    if model.get("name"):
        return preset_config(model["name"], **model.get("options", {}))
    options = dict(model.get("options", {}))
    return TokenmixConfig(**{"body": model.get("body") or body or "seq2seq", "layer": model["layer"], **options})


# ------------------------------------------------------------------------------------------------------------- running


def reproduce(
    recipe: Recipe | str,
    scale: str = "bench",
    *,
    out: str | Path = "runs/reproduce",
    seeds: int | None = None,
    engine: str = "local",
    jobs: int = 1,
    data: str | None = None,
    settings: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    parts: Sequence[str] = (),
    live: Live | None = None,
    report: bool = True,
    collect: bool = False,
) -> dict[str, Any]:
    """Run every stage; stages of recipes that share an ``out`` reuse each other's runs.

    ``settings`` lie above the recipe's own (`{"budget": {"steps": 100}}`); the result says so. ``only`` names the rows
    to run beside the baseline, ``parts`` the stages; claims about others stay "not run yet", and a later call without
    them goes on from there. Both complete an earlier result in ``out``: what it has is not run again. ``collect``: train
    nothing, put together what is finished in ``out``.
    """
    recipe = get_recipe(recipe) if isinstance(recipe, str) else recipe
    chosen = recipe.scale(scale)
    count = seeds or chosen.seeds
    folder = Path(out)
    started = time.time()
    values: dict[str, dict[str, list[float | None]]] = {}
    stages: dict[str, Any] = {}
    if chosen.search is not None:
        recipe = _with_found(recipe, scale, folder, data, settings, engine, jobs, live, collect)
    weights: dict[str, dict[tuple[str, int], str]] = {}
    asked = {stage.name: _asked(recipe, scale, stage, settings) for stage in chosen.stages}
    file = folder / recipe.name / scale / "result.json"
    before = _earlier(file, scale, count, settings) if only or parts or collect else None
    for stage in stages_of(recipe, scale, parts):
        entries = contenders_of(recipe, scale, stage, only, settings)
        place = folder / recipe.name / scale / stage.name
        if stage.profile:
            found = _profile(entries, stage, chosen, place, folder / "turns", jobs, collect)
            stages[stage.name] = found
            fill(values, stage, recipe, {name: profiled_numbers(row) for name, row in found["models"].items()})
            continue
        result = compare(
            entries,
            _run_settings(stage, chosen, scale, folder, data, settings),
            seeds=count,
            out=place,
            rule=chosen.match if not stage.after else "none",
            judging=Judging(stage.split, stage.examples, stage.beams),
            baseline=recipe.baseline,
            engine=engine,
            jobs=jobs,
            weights=weights.get(stage.after) if stage.after else None,
            live=live,
            command=recipe.command(scale, settings, count),
            report=report,
            pool=folder,
            collect=collect,
            known=measured_runs(before, stage, chosen, asked[stage.name]) if before and not collect else (),
        )
        weights[stage.name] = {
            (row["name"], run["seed"]): run["folder"] for row in result["models"] for run in row["runs"]
        }
        stages[stage.name] = shortened(result)
        fill(values, stage, recipe, {row["name"]: measured_numbers(row) for row in result["models"]})
    if collect and not values:
        raise ValueError(
            f"no finished run of {recipe.name} at {scale} in {folder}; give --out as it was when they were made"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, found in stages.items():
        found["asked"] = asked[name]
    if before:
        complete(values, stages, before, chosen, asked)
    made = make_result(recipe, scale, count, values, stages, time.time() - started, settings)
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")
    drawn = scaling_figure(recipe, made)
    if drawn is not None:
        file.with_name("scaling.svg").write_text(drawn.svg(), encoding="utf-8")
    else:
        file.with_name("scaling.svg").unlink(missing_ok=True)
    return made


def _earlier(file: Path, scale: str, seeds: int, settings: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An earlier result that a part may complete."""
    if not file.exists():
        return None
    before = read_result(file)
    if (before["scale"], before["seeds"], before["changed"]) == (scale, seeds, dict(settings or {})):
        return before
    was = f"scale {before['scale']}, {before['seeds']} seeds, --set {json.dumps(before['changed'])}"
    logger.warning("the earlier result in %s is replaced, not completed: it was made with %s", file.parent, was)
    return None


def _run_settings(
    stage: Stage, chosen: Scale, scale: str, folder: Path, data: str | None, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What all runs of a stage share: a part of a `RunConfig`."""
    body = stage.body or chosen.body
    above = merge(stage.settings, {"data": {"folder": data}} if data else {}, _but_sizes(settings, chosen))
    above = _prepared(above, folder, data, chosen.body or stage.body)
    return merge({"model": {"body": body}} if scale != "paper" and body else {}, above)


def _with_found(
    recipe: Recipe,
    scale: str,
    folder: Path,
    data: str | None,
    settings: Mapping[str, Any] | None,
    engine: str,
    jobs: int,
    live: Live | None,
    collect: bool,
) -> Recipe:
    """The recipe with the layer that the scale's search found in place of the one it began with."""
    from tokenmix.compare.search import Space, search

    chosen = recipe.scale(scale)
    assert chosen.search is not None
    stage = next(stage for stage in chosen.stages if stage.name == chosen.search.stage)
    entries = contenders_of(recipe, scale, stage, (), settings)
    rows = {row.name: row for row in recipe.rows}
    searched = [entry for entry in entries if rows[entry.name].searched]
    found = {}
    for entry in searched:
        tried = search(
            merge(_run_settings(stage, chosen, scale, folder, data, settings), chosen.search.settings),
            Space(**chosen.search.space),
            trials=chosen.search.trials,
            start=(entry.model["layer"], *chosen.search.start),
            baseline=str(recipe.row(recipe.baseline).layer),
            out=folder / recipe.name / scale / f"search-{slug(entry.name)}",
            rule=chosen.match,
            judging=Judging(stage.split, chosen.search.examples or stage.examples, stage.beams),
            options=entry.model["options"],
            engine=engine,
            jobs=jobs,
            live=live,
            pool=folder,
            collect=collect,
        )
        if tried[0].fair:
            found[entry.name] = tried[0].layer
    return replace(recipe, rows=tuple(replace(row, layer=found.get(row.name, row.layer)) for row in recipe.rows))


def _asked(recipe: Recipe, scale: str, stage: Stage, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a stage's numbers depend on besides the seeds: its settings, how it is judged, and the model of each row."""
    chosen = recipe.scale(scale)
    of_stage = {
        "settings": merge(stage.settings, settings or {}),
        "match": chosen.match,
        "body": stage.body or chosen.body,
    }
    if stage.profile:  # models may be counted here and timed there
        of_stage = {"settings": {k: v for k, v in stage.settings.items() if k not in ("steps", "rounds")}}
    judged = {"split": stage.split, "examples": stage.examples, "beams": stage.beams}
    models = {entry.name: entry.model for entry in contenders_of(recipe, scale, stage, (), settings)}
    return json.loads(json.dumps({"stage": {**of_stage, **judged}, "models": models}))


def _but_sizes(settings: Mapping[str, Any] | None, scale: Scale) -> dict[str, Any]:
    """The settings without the models' sizes, which the contenders have, and those that go on from weights from them."""
    left = merge({}, settings or {})
    if options := (left.get("model") or {}).get("options"):
        left["model"] = {**left["model"], "options": {k: v for k, v in options.items() if k not in scale.sizes}}
    return left


def _prepared(settings: dict[str, Any], folder: Path, data: str | None, body: str | None) -> dict[str, Any]:
    """`text:NAME` as shards: the text is tokenized once, for all recipes that share the folder and the body's style."""
    task = settings.get("data", {}).get("task", "")
    if not task.startswith("text:"):
        return settings
    from tokenmix.data.shard_writer import prepare_shards
    from tokenmix.data.sources import Files
    from tokenmix.data.task import get_task
    from tokenmix.data.tokenizers import load_tokenizer, train_tokenizer

    name, size = task.removeprefix("text:"), settings["data"].get("vocab_size", 16_000)
    style: Any = "bert" if body == "encoder" else "t5"
    place = folder / "text" / f"{name}-{style}-{size}"
    source = get_task(name).source("train", data)
    if not isinstance(source, Files):
        raise ValueError(f"{name} is prepared from local files; put them into the data folder (--data, $TOKENMIX_DATA)")
    with FolderLock(place, waits=True):  # another command may be at it
        if not (place / "tokenizer" / "tokenizer.json").exists():
            logger.info("training a tokenizer of %s tokens on %s → %s", f"{size:,}", name, place / "tokenizer")
            texts = (example.target for _, example in zip(range(20_000), get_task(name).stream("train", data)))
            made = train_tokenizer(texts, kind="unigram", vocab_size=size, style=style)
            made.save_pretrained(place / "tokenizer")
        if not (place / "shards" / "manifest.json").exists():
            logger.info("preparing %s → %s", name, place / "shards")
            prepare_shards(_files(source, data), load_tokenizer(place / "tokenizer"), place / "shards")
            load_tokenizer(place / "tokenizer").save_pretrained(place / "shards" / "tokenizer")
    return merge(settings, {"data": {"task": f"shards:{place / 'shards'}", "vocab_size": 8000}})


def _files(source: Any, data: str | None) -> list[Path]:
    from tokenmix.data.readers import find_file
    from tokenmix.data.sources import data_folder

    folder = (data_folder(data) or Path()) / source.folder
    found = find_file(folder, source.splits["train"])
    if found is None:
        raise FileNotFoundError(f"no {source.splits['train']} (plain, .gz or .xz) in {folder}")
    return [found]


def _profile(
    entries: Sequence[Contender], stage: Stage, scale: Scale, place: Path, turns: Path, jobs: int, collect: bool = False
) -> dict[str, Any]:
    """Every model counted and timed; what an earlier call into the same folder measured, on a machine with the same
    hardware and versions, is kept. With ``collect`` all that is there is, and nothing is measured."""
    from tokenmix.compare.profile import profile_all
    from tokenmix.devices import chosen_device

    settings, on_gpu = dict(stage.settings), chosen_device("auto").type == "cuda"
    if stage.original and not on_gpu:
        logger.info("no GPU here: models of the papers' own sizes are counted, not timed")
        settings["steps"] = 0
    place.mkdir(parents=True, exist_ok=True)
    models, todo, asked = {}, {}, {}
    for entry in entries:
        config = _fitting(config_of(entry, scale.body), settings)
        wanted = {
            "model": config.to_dict(), "settings": settings, "hardware": hardware(), "versions": versions(),
            "threads": torch.get_num_threads(),
        }  # fmt: skip
        asked[entry.name] = json.loads(json.dumps(wanted, default=str))
        file = _profile_file(place, entry.name)
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if known and (collect or known.get("asked") == asked[entry.name]):
            models[entry.name] = known["found"]
        elif not collect:
            todo[entry.name] = config
    side_by_side = jobs if on_gpu else 1  # beside others a CPU would measure them, too
    for name, found in profile_all(todo, settings, folder=place, turns=turns, jobs=side_by_side):
        write_json(_profile_file(place, name), {"asked": asked[name], "found": found})
        models[name] = found
    return {
        "profile": settings,
        "models": {entry.name: models[entry.name] for entry in entries if entry.name in models},
    }


def _profile_file(place: Path, name: str) -> Path:
    return place / f"{slug(name)}.json"


def _fitting(config: TokenmixConfig, settings: Mapping[str, Any]) -> TokenmixConfig:
    from tokenmix.models.create import plain

    longest = max(settings.get("length") or 1, settings.get("target_length") or 1)
    if config.body == "vision" or longest <= config.max_length:
        return config
    return TokenmixConfig(**{**plain(config), "max_length": longest})
