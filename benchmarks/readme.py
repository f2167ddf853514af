"""Write the figures of the README from the committed result files.

    python -m benchmarks.readme            # rewrites the part of README.md between the two marks
    python -m benchmarks.readme --check    # exits 1 if that would change anything

No figure in the README is typed by hand: each row names the result file it was read from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


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


def block() -> str:
    lines = ["| work | ours | beside it, in the same run | from `benchmarks/results/` |", "|---|---|---|---|"]
    lines += [f"| {what} | {ours} | {peer} | `{name}` |" for what, ours, peer, name in rows()]
    return "\n".join([BEGIN, *lines, END])


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    new = before + block() + after
    if "--check" in sys.argv:
        sys.exit(new != text)
    readme.write_text(new)


if __name__ == "__main__":
    main()
