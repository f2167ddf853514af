"""Write the figures of the README and of docs/speed.md from the committed result files.

    python -m benchmarks.readme            # rewrites what stands between the marks of the two pages
    python -m benchmarks.readme --check    # exits 1 if that would change anything

No figure of these tables is typed by hand: each row names the result file it was read from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def rows() -> list[tuple[str, str, str, str]]:
    """(what, ours, beside, from)."""
    found: list[tuple[str, str, str, str]] = []
    for name, where in (("generate-h200.json", "one H200, bf16"), ("generate-cpu.json", "two CPU cores, fp32")):
        for row in (load(name) or {}).get("rows", []):
            search = "greedy" if row["beams"] == 1 else f"beam {row['beams']}"
            what = f"{(load(name) or {})['model'].split(',')[0]}, {search}, batch {row['batch']}, {where}"
            ours = f"{row['ours_tokens_per_s']:,.0f} tokens/s"
            found.append(
                (
                    what,
                    f"**{row['times_faster']:.1f}×**" + (f" ({ours})" if "H200" in where else ""),
                    "Hugging Face `generate`",
                    name,
                )
            )
    ops = load("ops-h200.json")
    if ops:
        for key, peer in (
            ("remix", "torch.compile"),
            ("gating", "torch.compile"),
            ("random", "einsum"),
            ("bias", "FlexAttention"),
        ):
            times = ops["tables"][key]["ms"]
            theirs = times.get(peer) or times.get(peer.lower()) or next(v for k, v in times.items() if k != "tokenmix")
            ours = times["tokenmix"]["both"]
            what = ops["tables"][key]["what"].rstrip(".").split(";")[0] + ", forward + backward, one H200"
            found.append((what, f"{ours:.2f} ms", f"{peer} {theirs['both']:.2f} ms", "ops-h200.json"))
    train = load("train-h200.json")
    if train:
        for table, ours, theirs, what, peer in (
            ("t5", "T5.1.1-base", "Hugging Face T5.1.1-base", "training step, batch 128, 512/114", "Hugging Face"),
            ("cogs", "COGS-sized", "Hugging Face COGS-sized", "training step, batch 128, 24/160", "Hugging Face"),
            ("gmlp", "gMLP-S/16 training", "timm gMLP-S/16 training", "batch 256", "timm"),
            ("gmlp", "gMLP-S/16 inference", "timm gMLP-S/16 inference", "batch 256", "timm"),
        ):
            mine, other = train["tables"][table][ours], train["tables"][table][theirs]
            cost = [f"{row['ms']:.3g} ms, {row['memory_gb']:.1f} GB" for row in (mine, other)]
            times = f"**{other['ms'] / mine['ms']:.2f}×** ({cost[0]})"
            found.append((f"{ours}, {what}, compiled, one H200, bf16", times, f"{peer}, {cost[1]}", "train-h200.json"))
    data = load("data-cpu.json")
    if data:
        span, masked = data["span_corruption"], data["masked_lm"]
        flax = "a numpy collator in the manner of T5 Flax's"
        found.append(("span corruption, one CPU core", f"**{span['ratio']:.1f}×**", flax, "data-cpu.json"))
        collator = "transformers' `DataCollatorForLanguageModeling`"
        found.append(("masked LM, one CPU core", f"**{masked['ratio']:.0f}×**", collator, "data-cpu.json"))
    train = load("train-cpu.json")
    for row in (train or {}).get("rows", []):
        if row["bar"] is not None:
            kind = row["what"] if "forward" in row["what"] else f"training step, {row['what'].replace('|', 'then')}"
            what = f"{kind}, batch {row['batch']}, two CPU cores"
            found.append((what, f"**{row['wall']['times_as_fast']:.2f}×**", row["peer"], "train-cpu.json"))
    return found


def bars() -> list[tuple[str, str, str, str, str]]:
    """(what, asked, measured, met, from): everything of which a bar was set."""
    found = []
    for what, row in (load("ops-h200.json") or {}).get("bars", {}).items():
        if "ms" in row:
            asked, measured = f"at most {row['bar_ms']} ms", f"{row['ms']:.3g} ms"
        else:
            asked, measured = f"at most {row['bar']}", f"{row['exponent']:.2f}"
        found.append((named(what), asked, measured, row["met"], "ops-h200.json"))
    for what, row in (load("train-h200.json") or {}).get("bars", {}).items():
        measured = f"{row['measured']:,.0f}" if row["measured"] >= 1000 else f"{row['measured']:.4g}"
        found.append((named(what), row["asked"], measured, row["met"], "train-h200.json"))
    for run in (load("train-loop-h200.json") or {}).get("runs", []):
        if "cogs" in run["run"]:
            what = "COGS-sized, bucketed real lengths, in the training loop: steps per second"
            steps = run["steps_per_second"]
            found.append((what, "at least 300", f"{steps:.4g}", steps >= 300, "train-loop-h200.json"))
    for row in (load("train-cpu.json") or {}).get("rows", []):
        if row["bar"] is not None:
            what = f"{row['what'].replace('|', 'then')}, times as fast as {row['peer']}"
            times = row["wall"]["times_as_fast"]
            found.append((what, f"at least {row['bar']}", f"{times:.2f}", row["met"], "train-cpu.json"))
    return [(what, asked, measured, "yes" if met else "**no**", name) for what, asked, measured, met, name in found]


def reasons() -> list[str]:
    """What is known of each bar that was missed, from short_of_a_bar.json."""
    known = json.loads((ROOT / "benchmarks" / "short_of_a_bar.json").read_text(encoding="utf-8"))
    missed = [
        bar
        for name in ("ops", "train")
        for bar, row in (load(f"{name}-h200.json") or {}).get("bars", {}).items()
        if not row["met"]
    ]
    for bar in missed:
        if bar not in known:
            raise SystemExit(f"the bar {bar!r} is missed: say why in benchmarks/short_of_a_bar.json")
    return [f"- **{named(bar)}**: {known[bar]}." for bar in missed]


def named(bar: str) -> str:
    """A bar's name in a result file, for a reader."""
    operator = {"remix": "Remixer's memory", "gating": "spatial gate", "bias": "attention with a learned bias",
                "random": "Random Synthesizer"}  # fmt: skip
    first, _, rest = bar.partition(" ")
    if first in operator:
        return f"{operator[first]}, {rest.replace('both', 'forward + backward')}"
    return bar.replace("_", " ").replace(" t5", " T5.1.1").replace("memory gb", "memory in GB")


def table(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    head, *body = (f"| {' | '.join(line)} |" for line in (headings, *lines))
    return [head, "|" + "---|" * len(headings), *body]


def pages() -> dict[Path, tuple[str, list[str]]]:
    """page → (name of its marks, the lines between them)."""
    figures = table(
        ("work", "ours", "beside it, in the same run", "from `benchmarks/results/`"),
        [(what, ours, peer, f"`{name}`") for what, ours, peer, name in rows()],
    )
    asked = table(
        ("work", "asked", "measured", "met", "from `benchmarks/results/`"),
        [(*row, f"`{name}`") for *row, name in bars()],
    )
    return {
        ROOT / "README.md": ("figures", figures),
        ROOT / "docs" / "speed.md": ("bars", [*asked, "", *reasons()]),
    }


def written(text: str, mark: str, lines: list[str]) -> str:
    """The text with the lines between its marks."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = text.split(begin)
    return "\n".join([before + begin, *lines, end + rest.split(end)[1]])


def main() -> None:
    changed = False
    for page, (mark, lines) in pages().items():
        text = page.read_text(encoding="utf-8")
        new = written(text, mark, lines)
        changed |= new != text
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
    sys.exit("--check" in sys.argv and changed)


if __name__ == "__main__":
    main()
