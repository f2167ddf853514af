"""`make demo`: six architectures on SCAN in a few minutes on two cores, with a table and a page at the end.

Run as `python -m tokenmix.demo [--out runs/demo] [--steps N] [--jobs N]`. Killed and started again it goes on; what is
finished is not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# Before torch is imported: threads that wait for each other give way soon, or a busy machine trains 10 times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

MODELS = (  # the slow ones first, so that two cores are done at the same time
    "Transformer=dot | geglu",
    "Remixer=dot | remix",
    "Synthesizer (R)=random | geglu",
    "Synthesizer (D)=dense | geglu",
    "Synthesizer (R+V)=random + dot | geglu",
    "gMLP encoder=gmlp ; dot | geglu",
)
# SCAN's answers count up to 48 actions: T5's 32 buckets would blur the far ones
SIZES = {
    "d_model": 64, "d_ff": 128, "heads": 4, "layers": 2, "max_length": 64,
    "relative_buckets": 64, "relative_distance": 64,
}  # fmt: skip
STEPS = 3000
EXAMPLES = 500  # of the 4,182 of the test split


def main(arguments: list[str] | None = None) -> None:
    """Compare, print the table, write the report, say where it is."""
    parser = argparse.ArgumentParser(prog="python -m tokenmix.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs and the report")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of each model")
    parser.add_argument("--jobs", type=int, default=max(1, min(6, os.cpu_count() or 1)), help="models at a time")
    given = parser.parse_args(arguments)

    from rich.console import Console

    from tokenmix.compare.comparison import compare
    from tokenmix.compare.plan import Judging
    from tokenmix.compare.table import failures, rich_table

    started = time.monotonic()
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 220)
    console.print(
        f"Six ways of mixing tokens learn SCAN: {given.steps} steps each, the same batches in the same order, "
        f"{given.jobs} at a time. A few minutes on two cores."
    )
    result = compare(
        MODELS,
        {
            "data": {"task": "scan", "batch_size": 32},
            "model": {"options": SIZES},
            "optimizer": {"name": "adamw", "lr": 2e-3},
            "schedule": {"name": "linear", "warmup": 0.05},
            "budget": {"steps": given.steps},
            "validation": {"every": max(1, given.steps // 3), "examples": 64},
            "checkpoints": {"every": max(1, given.steps // 3), "keep_last": 1},
            "device": {"device": "cpu", "threads": 1},
        },
        seeds=[0],
        out=given.out,
        judging=Judging(examples=EXAMPLES),
        jobs=given.jobs,
        command=f"python -m tokenmix.demo --steps {given.steps}",
    )
    console.print(rich_table(result))
    for line in failures(result):
        console.print(f"failed: {line}", style="red", markup=False)
    console.print(
        "One seed: the interval is over the examples of the test set and says nothing about other seeds. For more:\n"
        '  tokenmix compare --task scan --models transformer "random | geglu" "dot | remix" --seeds 3 --match params'
    )
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    page = (given.out / "report.html").resolve()
    where = page if page.exists() else (given.out / "comparison.json").resolve()
    console.print(f"Done in {minutes}:{seconds:02d} minutes. Open the report: [bold]{where}[/]")


if __name__ == "__main__":
    main()
