"""`tokenmix reproduce`: run a table of a paper, and see which of its claims hold."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenmix.cli import app

# Before torch is imported: threads that wait for each other give way soon, or a busy machine trains 10 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@app.command("reproduce")
def reproduce(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name; without it all are listed.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny (seconds, no data), bench (one GPU, minutes) or paper.")] = "bench",
    seeds: Annotated[int | None, typer.Option(min=1, help="By default the scale's own.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder; recipes that share it reuse each other's runs.")
    ] = Path("runs/reproduce"),
    data: Annotated[Path | None, typer.Option(help="Folder of local data; default: $TOKENMIX_DATA.")] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Runs side by side; on a GPU the seeds of a model share one.")
    ] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray.")] = "local",
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Change a setting: `budget.steps=1000`.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="A row to run, beside the baseline; may be repeated. Default: all rows."),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="A stage to run (`--plan` names them); may be repeated. Default: all."),
    ] = None,
    collect: Annotated[
        bool,
        typer.Option(
            "--collect", help="Train nothing: put together what is finished in the folder; the data must be here."
        ),
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Copy the result there, e.g. recipes/results.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be run, and how long it takes.")] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="Write the claims ledger to this file, e.g. docs/claims.md.")
    ] = None,
    results: Annotated[Path, typer.Option(help="With --ledger: folder of committed results.")] = Path(
        "recipes/results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Run RECIPE, a table of the papers, and show the paper's numbers beside ours with the claims that hold.

    `tokenmix reproduce synthesizer-table-7 --scale bench`
    """
    from tokenmix.recipes import get_recipe
    from tokenmix.training.config import assignment, merge

    console = Console() if sys.stdout.isatty() else Console(width=10_000, force_terminal=False)
    if recipe is not None:
        chosen = get_recipe(recipe)
        chosen.scale(scale)
        changed = merge(*(assignment(text) for text in set_ or []))
        if plan:
            _plan(chosen, scale, seeds, only or [], part or [], changed, console, as_json)
        else:
            from tokenmix.recipes.result import read_result
            from tokenmix.recipes.run import reproduce as run

            path = out / chosen.name / scale / "result.json"
            kept = None if save is None else save / f"{chosen.name}.json"
            if save is not None and save.is_file():
                raise ValueError(f"--save takes a folder, and {save} is a file")
            if kept is not None and kept.exists():
                known = read_result(kept)["scale"]
                if known != scale:
                    raise ValueError(f"{kept} is a result at scale {known}, not {scale}; save to another folder")
                if (only or part) and not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(kept, path)  # a part completes what is there
            result = run(
                chosen, scale, out=out, seeds=seeds, engine=engine, jobs=jobs, data=None if data is None else str(data),
                settings=changed, only=only or (), parts=part or (), collect=collect,
            )  # fmt: skip
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                path = Path(shutil.copy(path, kept))
            if as_json:
                typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
            else:
                show(result, console)
                drawn = out / chosen.name / scale / "scaling.svg"
                if drawn.exists():
                    console.print(f"figure  {drawn.resolve()}", highlight=False, markup=False, soft_wrap=True)
                console.print(f"result  {path.resolve()}", highlight=False, markup=False, soft_wrap=True)
    elif only or part or set_ or plan or collect or seeds or save:
        raise ValueError("name a recipe; `tokenmix reproduce` alone lists them")
    elif ledger is None:
        _list(console, as_json)
    if ledger is not None:
        from tokenmix.recipes.ledger import ledger as page

        ledger.parent.mkdir(parents=True, exist_ok=True)
        ledger.write_text(page(results), encoding="utf-8")
        console.print(f"claims  {ledger.resolve()}", highlight=False, markup=False, soft_wrap=True)


def show(result: dict[str, Any], console: Console) -> None:
    """The paper's table with ours beside it, then the claims."""
    title = f"{result['place']}: {result['title']} ({result['scale']}, {result['seeds']} seeds)"
    table = Table(title=Text(title), title_justify="left", caption=Text(result["note"]), caption_justify="left")
    table.add_column("model", overflow="fold")
    for column in result["columns"]:
        table.add_column(Text(f"{column}\npaper | ours"), justify="right", overflow="fold")
    for row in result["rows"]:
        cells = [f"{_number(c['paper'])} | {_ours(c)}" for c in (row["columns"][name] for name in result["columns"])]
        table.add_row(Text(row["name"] + (f": {row['found']}" if "found" in row else "")), *map(Text, cells))
    console.print(table)
    claims = Table(title=Text("claims"), title_justify="left")
    for name in ("claim", "paper", "ours", "verdict", "why"):
        claims.add_column(name, overflow="fold")
    styles = {"holds": "green", "does not hold": "red", "undecided": "yellow"}
    for claim in result["claims"]:
        told = [Text(claim[name]) for name in ("text", "paper", "ours", "verdict", "reason")]
        claims.add_row(*told, style=styles.get(claim["verdict"], "dim"))
    console.print(claims)
    for name, stage in result["stages"].items():
        for row in stage["models"] if isinstance(stage["models"], list) else []:
            for run in row["runs"]:
                if run["status"] == "failed":
                    text = f"failed: {name}, {row['name']}, seed {run['seed']}: {run['error']}"
                    console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) >= 1e6 else f"{value:g}"


def _ours(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "–"
    spread = f" ± {cell['deviation']:.2g}" if cell["deviation"] else ""
    return f"{cell['mean']:.4g}{spread}"


def _plan(
    recipe: Any, scale: str, seeds: int | None, only: list[str], parts: list[str], changed: dict[str, Any],
    console: Console, as_json: bool,
) -> None:  # fmt: skip
    from tokenmix.recipes.estimate import gpu_minutes
    from tokenmix.recipes.run import contenders_of, stages_of
    from tokenmix.training.config import merge

    chosen = recipe.scale(scale)
    count = seeds or chosen.seeds
    minutes = 0.0 if scale == "tiny" else gpu_minutes(recipe, scale, only, parts, changed) * count / chosen.seeds
    stages: list[dict[str, Any]] = []
    for stage in stages_of(recipe, scale, parts):
        entries = contenders_of(recipe, scale, stage, only, changed)
        models = {entry.name: entry.model.get("name") or entry.model["layer"] for entry in entries}
        search = chosen.search
        if search is not None and search.stage == stage.name:
            for row in recipe.rows:
                if row.searched and row.name in models:
                    models[row.name] = f"the best of {search.trials} trials, from {models[row.name]} on"
        settings = dict(stage.settings) if stage.profile else merge(stage.settings, changed)
        stages.append({"stage": stage.name, "after": stage.after, "settings": settings, "models": models})
    plan = {
        "recipe": recipe.name,
        "scale": scale,
        "seeds": count,
        "gpu_minutes": minutes,
        "note": chosen.note,
        "stages": stages,
    }
    if as_json:
        typer.echo(json.dumps(plan, indent=1, ensure_ascii=False))
        return
    console.print(f"{recipe.place}: {recipe.title}", highlight=False, markup=False)
    takes = "seconds on a CPU" if scale == "tiny" else f"about {minutes:,.0f} minutes on one H200"
    console.print(
        f"{scale}, {count} seeds, {takes}. {chosen.note}",
        highlight=False,
        markup=False,
    )
    for made in stages:
        after = f", from {made['after']}" if made["after"] else ""
        console.print(
            f"\n{made['stage']}{after}: {json.dumps(made['settings'])}", highlight=False, markup=False, soft_wrap=True
        )
        for name, model in made["models"].items():
            console.print(f"  {name}: {model}", highlight=False, markup=False, soft_wrap=True)


def _list(console: Console, as_json: bool) -> None:
    from tokenmix.recipes import load_recipes

    entries: list[dict[str, Any]] = [
        {"name": r.name, "place": r.place, "title": r.title, "rows": len(r.rows), "claims": [c.text for c in r.claims]}
        for r in load_recipes().values()
    ]
    if as_json:
        typer.echo(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    table = Table("recipe", "what", "claims")
    for column in table.columns:
        column.overflow = "fold"
    for entry in entries:
        table.add_row(entry["name"], Text(entry["title"]), Text("\n".join(entry["claims"])))
    console.print(table)
