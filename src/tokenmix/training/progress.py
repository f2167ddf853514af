"""What a person sees: a bar on a terminal, plain lines elsewhere. And the callbacks that any program can listen with.

>>> class Curve(Callback):
...     def on_log(self, record):
...         points.append((record["step"], record["loss"]))
>>> train(config, callbacks=[Curve()])
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class Callback:
    """Override what is of interest. Records are plain dictionaries."""

    def on_start(self, run: dict[str, Any]) -> None:
        """Once, before the first step: out, steps (or None), parameters, model, task, device, resumed."""

    def on_step(self, step: int, fraction: float) -> None:
        """After every step; ``fraction`` of the budget is used."""

    def on_log(self, record: dict[str, Any]) -> None:
        """Every `log_every` steps: step, loss, lr, examples/s, tokens/s, mfu, memory, seconds_left, …"""

    def on_validation(self, record: dict[str, Any]) -> None:
        """After a validation: step, loss, the task's metrics."""

    def on_message(self, text: str) -> None:
        """Something the user should know."""

    def on_end(self, result: Any) -> None:
        """Once, with the `RunResult`."""


def clock(seconds: float | None) -> str:
    """Seconds as people write them.

    >>> clock(3723)
    '1:02:03'
    """
    if seconds is None or seconds != seconds or seconds == float("inf"):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_words(record: dict[str, Any], metric: str = "") -> str:
    """A log record on one line."""
    parts = [f"loss {record['loss']:.4f}"]
    if metric:
        parts.append(metric)
    parts += [f"lr {record['lr']:.2e}", f"{record['examples/s']:,.0f} ex/s", f"{record['tokens/s']:,.0f} tok/s"]
    if record.get("mfu") is not None:
        parts.append(f"{100 * record['mfu']:.1f}% of peak")
    parts.append(f"{record['memory_gb']:.2f} GB")
    return "  ".join(parts)


class ConsoleProgress(Callback):
    """A rich bar on a terminal; one line every few seconds where there is none."""

    def __init__(self, console: Console | None = None, seconds_between_lines: float = 10.0) -> None:
        self.console = console or Console(stderr=True)
        self.pause = seconds_between_lines
        self.bar: Progress | None = None
        self.metric = ""
        self._spoke = 0.0
        self._steps: int | None = None

    def on_start(self, run: dict[str, Any]) -> None:
        self._steps = run["steps"]
        resumed = f", resumed at step {run['resumed']}" if run["resumed"] else ""
        what = f"{run['model']} ({run['parameters']:,} parameters) on {run['task']}"
        text = f"{what}, {run['device']}{resumed} → {run['out']}"
        self.console.print(text, highlight=False, soft_wrap=True)
        if self.console.is_terminal:
            columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[status]}"))
            self.bar = Progress(TextColumn("{task.description}"), *columns, console=self.console)
            self.bar.start()
            self.line = self.bar.add_task("starting", total=1.0, status="")

    def on_step(self, step: int, fraction: float) -> None:
        if self.bar is not None:
            of = f"/{self._steps}" if self._steps else ""
            self.bar.update(self.line, completed=fraction, description=f"step {step}{of}")

    def on_log(self, record: dict[str, Any]) -> None:
        status = f"{in_words(record, self.metric)}  {clock(record['seconds_left'])} left"
        if self.bar is not None:
            self.bar.update(self.line, status=status)
        elif time.monotonic() - self._spoke >= self.pause:
            self._spoke = time.monotonic()
            of = f"/{self._steps}" if self._steps else ""
            self.console.print(f"step {record['step']}{of}  {status}", highlight=False, soft_wrap=True)

    def on_validation(self, record: dict[str, Any]) -> None:
        shown = [k for k in record if k not in ("step", "kind", "seconds", "loss", "time")][:3]
        self.metric = f"{shown[0]} {record[shown[0]]:.2f}" if shown else ""
        values = "  ".join(f"{name} {record[name]:.2f}" for name in shown)
        loss = f"loss {record['loss']:.4f}  " if record.get("loss") is not None else ""
        self.console.print(f"validation at step {record['step']}: {loss}{values}", highlight=False, soft_wrap=True)

    def on_message(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def on_end(self, result: Any) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.console.print(result.summary(), highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        if self.bar is not None:
            self.bar.stop()
