"""The live view: one line per run on a terminal, a plain line now and then elsewhere.

Runs say in RUN/live.json where they stand, so that it does not matter in which process or on which machine they are.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from tokenmix.compare.plan import RunSpec
from tokenmix.training.progress import clock

BAR = 20


class Live:
    """Shows the runs of a comparison.

    >>> with Live(Console(stderr=True)).watching(runs):
    ...     run_all(runs)
    """

    def __init__(self, console: Console | None = None, every: float = 15.0) -> None:
        self.console = console or Console(stderr=True)
        self.every = every  # seconds between plain lines
        self.done: dict[str, Mapping[str, Any]] = {}
        self._runs: Sequence[RunSpec] = ()

    @contextlib.contextmanager
    def watching(self, runs: Sequence[RunSpec]) -> Iterator[None]:
        """Show these runs as long as the block lasts."""
        self._runs = runs
        over = threading.Event()
        if self.console.is_terminal:
            with RichLive(self.table(), console=self.console, refresh_per_second=2, get_renderable=self.table):
                yield
            return
        thread = threading.Thread(target=self._lines, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=5)

    def ended(self, record: Mapping[str, Any]) -> None:
        """A run is over."""
        self.done[record["folder"]] = record
        if not self.console.is_terminal:
            spec = next(spec for spec in self._runs if spec.folder == record["folder"])
            self.console.print(
                f"[{len(self.done)}/{len(self._runs)}] {self.line(spec)}", highlight=False, markup=False, soft_wrap=True
            )

    def state(self, spec: RunSpec) -> dict[str, Any]:
        """Where a run stands: phase, step, fraction, loss, metric."""
        record = self.done.get(spec.folder)
        if record is not None and record["status"] == "failed":
            return {"phase": "failed", "error": record["error"]}
        try:
            found = json.loads((Path(spec.folder) / "live.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {"phase": "waiting"}
        if record is not None:
            names = list(record["metrics"])
            shown = {"metric": names[0], "value": record["metrics"][names[0]]} if names else {}
            phase = "reused" if record.get("reused") else "done"
            return {**found, "phase": phase, "fraction": 1.0, **shown, "seconds": record["seconds"]}
        return {"phase": "waiting"} if found["phase"] in ("failed", "done") else found

    def line(self, spec: RunSpec) -> str:
        """A run on one line."""
        state = self.state(spec)
        parts = [spec.label, state["phase"]]
        if state["phase"] == "training":
            parts[1] = f"{100 * state.get('fraction', 0.0):.0f}%"
        if state.get("loss") is not None:
            parts.append(f"loss {state['loss']:.4f}")
        if state.get("value") is not None:
            parts.append(f"{state['metric']} {state['value']:.2f}")
        if state["phase"] == "training" and state.get("left") is not None:
            parts.append(f"{clock(state['left'])} left")
        if state.get("seconds") is not None:
            parts.append(f"in {clock(state['seconds'])}")
        if state.get("error"):
            parts.append(str(state["error"]))
        return "  ".join(parts)

    def table(self) -> Table:
        """All runs, one line each."""
        table = Table(box=None, pad_edge=False)
        for name in ("model", "seed", "", "progress", "loss", "metric", "left"):
            table.add_column(
                name, justify="right" if name in ("seed", "loss", "metric", "left") else "left", no_wrap=True
            )
        for spec in self._runs:
            state = self.state(spec)
            full = round(BAR * (state.get("fraction") or 0.0))
            metric = f"{state['metric']} {state['value']:.2f}" if state.get("value") is not None else ""
            style = {"failed": "red", "done": "green", "reused": "green", "waiting": "dim"}.get(state["phase"], "")
            loss = f"{state['loss']:.4f}" if state.get("loss") is not None else ""
            left = clock(state["left"]) if state["phase"] == "training" and state.get("left") is not None else ""
            phase = state["phase"] if not state.get("error") else f"failed: {state['error']}"[:60]
            bar = "━" * full + "─" * (BAR - full)
            table.add_row(*map(Text, (spec.model, str(spec.seed), bar, phase, loss, metric, left)), style=style)
        return table

    def _lines(self, over: threading.Event) -> None:
        spoke = time.monotonic()
        while not over.wait(0.5):
            if time.monotonic() - spoke < self.every:
                continue
            spoke = time.monotonic()
            for spec in self._runs:
                if spec.folder not in self.done and self.state(spec)["phase"] not in ("waiting", "done"):
                    self.console.print(self.line(spec), highlight=False, markup=False, soft_wrap=True)
