"""`tokenmix tasks`: every task, where its data comes from and whether it is here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from tokenmix.cli import app


def describe(name: str, data: Path | None = None) -> dict[str, Any]:
    """What the listing says about a task, as plain values."""
    from tokenmix.data.sources import Files, Hub
    from tokenmix.data.task import get_task

    task = get_task(name)
    hub = next((source.where("") for source in task.sources if isinstance(source, Hub)), None)
    here = {}
    for split in task.splits:
        source = next((s for s in task.sources if not isinstance(s, Hub) and s.has(split, data)), None)
        if source is not None:
            here[split] = source.where(split, data)
    official = next((source.folder for source in task.sources if isinstance(source, Files)), None)
    return {
        "name": task.name,
        "family": task.family,
        "forms": list(task.forms),
        "splits": list(task.splits),
        "metric": task.metric,
        "labels": list(task.labels),
        "present": {split: split in here for split in task.splits},
        "folders": list(dict.fromkeys(here.values())),
        "official_folder": official,
        "hub": hub,
        "url": task.url,
        "note": task.about(data=data) if here else "",
    }


def _present(entry: dict[str, Any]) -> str:
    splits = [split for split, there in entry["present"].items() if there]
    if not splits:
        return "no"
    return "yes" if len(splits) == len(entry["splits"]) else f"only {', '.join(splits)}"


@app.command("tasks")
def tasks(
    data: Path | None = typer.Option(
        None, "--data", exists=True, file_okay=False, help="Folder of local data; default: $TOKENMIX_DATA."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """List every task: splits, metric, and whether its data is present, in which folder or under which Hub name."""
    from tokenmix.data.task import list_tasks

    entries = [describe(name, data) for name in list_tasks()]
    if as_json:
        typer.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    table = Table("task", "family", "forms", "splits", "metric", "present", "where", "note")
    table.caption = "one's own: file:train.jsonl?input=question&target=answer, images:FOLDER"
    for column in table.columns:
        column.overflow = "fold"  # a long name goes over two lines, it is never cut
    for entry in entries:
        where = ", ".join(entry["folders"])
        source = " or ".join(filter(None, (where, entry["hub"] if _present(entry) != "yes" else None)))
        cells = (entry["name"], entry["family"], ", ".join(entry["forms"]), ", ".join(entry["splits"]), entry["metric"])
        table.add_row(*cells, _present(entry), source or entry["url"], entry["note"])
    # into a pipe or a file the table is as wide as it needs to be
    console = Console() if sys.stdout.isatty() else Console(width=10_000, force_terminal=False)
    console.print(table)
