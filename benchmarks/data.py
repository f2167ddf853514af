"""How fast text becomes training examples, beside plain Hugging Face code doing the same work in the same run.

    TOKENMIX_DATA=../shared/data python -m benchmarks.data            # about 3 minutes on two idle cores

Writes benchmarks/results/data-cpu.json. Bars:

- preparing text end to end (read, tokenize, hash, write) runs at ≥ 0.8 of `tokenizers`' own `encode_batch`;
- span corruption makes ≥ 5,000 examples/s of 512 tokens, and ≥ 10 times what a numpy collator makes that draws its
  masks example by example, in the manner of the widely used T5 Flax script (a leaner one is measured beside it);
- masked LM makes ≥ 10,000 examples/s of 512 tokens.

Objectives run on one core. The two sides of a comparison take turns and the ratio is the median over the turns, so that
other work on the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

THREADS = 2
os.environ["RAYON_NUM_THREADS"] = str(THREADS)  # before `tokenizers` starts its threads
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import numpy as np  # noqa: E402

from tokenmix.data.documents import read_documents  # noqa: E402
from tokenmix.data.objectives import Corrupted, MaskedLM, SpanCorruption, build_objective, noise_counts  # noqa: E402
from tokenmix.data.shard_writer import prepare_shards  # noqa: E402
from tokenmix.data.shards import TokenShards  # noqa: E402
from tokenmix.data.tokenizers import train_tokenizer  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "data-cpu.json"
BATCH = 128


def load_text(characters: int) -> tuple[list[str], str]:
    """(documents, where they are from): Wikipedia from TOKENMIX_DATA, or generated words where that is absent."""
    path = Path(os.environ.get("TOKENMIX_DATA", "")) / "wikipedia_en" / "train.txt.xz"
    documents: list[str] = []
    size = 0
    if os.environ.get("TOKENMIX_DATA") and path.exists():
        for document in read_documents([path]):
            documents.append(document)
            size += len(document)
            if size >= characters:
                break
        return documents, "wikipedia_en/train.txt.xz"
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(50_000)]
    ranks = rng.zipf(1.3, size=characters // 5) % len(words)
    text = [words[rank] for rank in ranks]
    return [" ".join(text[n : n + 300]) for n in range(0, len(text), 300)], "generated words, Zipf-distributed"


def alternate(repeats: int, **work: Callable[[], float]) -> dict[str, list[float]]:
    """Rates of several pieces of work that take turns; each returns how many units it did."""
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, function in work.items():
            started = time.perf_counter()
            units = function()
            rates[name].append(units / (time.perf_counter() - started))
    return rates


def median(rates: list[float]) -> float:
    return statistics.median(rates)


def paired_ratio(rates: list[float], others: list[float]) -> float:
    """The median ratio of turns that ran one after the other, so that both had the same neighbours."""
    return median([rate / other for rate, other in zip(rates, others, strict=True)])


def measure_prepare(documents: list[str], tokenizer: Any, folder: Path, repeats: int) -> dict[str, Any]:
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents), encoding="utf-8")
    million = text.stat().st_size / 1e6
    runs = iter(range(1000))
    cpu: dict[str, list[float]] = {"ours": [], "encode_batch": []}  # seconds of all threads and ended processes

    def ours() -> float:
        before = sum(os.times()[:4])
        prepare_shards([text], tokenizer, folder / f"shards-{next(runs)}", workers=THREADS)
        cpu["ours"].append(sum(os.times()[:4]) - before)
        return million

    def encode_batch() -> float:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        before = sum(os.times()[:4])
        tokenizer.backend_tokenizer.encode_batch(documents, add_special_tokens=False)
        cpu["encode_batch"].append(sum(os.times()[:4]) - before)
        return million

    def hugging_face() -> float:  # the usual loop: a batch of texts to lists of ids
        part = documents[: len(documents) // 4]
        for first in range(0, len(part), 1000):
            tokenizer(part[first : first + 1000], add_special_tokens=False)
        return sum(len(document.encode()) for document in part) / 1e6

    rates = alternate(repeats, ours=ours, encode_batch=encode_batch, hugging_face=hugging_face)
    ratio = paired_ratio(rates["ours"], rates["encode_batch"])
    return {
        "unit": "MB of text per second, two threads or processes",
        "megabytes": round(million, 1),
        "ours": median(rates["ours"]),
        "tokenizers encode_batch": median(rates["encode_batch"]),
        "transformers tokenizer(batch)": median(rates["hugging_face"]),
        "ratio": ratio,
        "ratio of CPU seconds, encode_batch to ours (no bar)": paired_ratio(cpu["encode_batch"], cpu["ours"]),
        "bar": "ratio ≥ 0.8",
        "met": ratio >= 0.8,
        "runs": rates,
        "CPU seconds": cpu,
    }


class FlaxMannerCollator:
    """Span corruption built as the widely used T5 Flax collator is: the yardstick of the bar, written anew.

    A noise mask is drawn for one example after another (shuffle, pad, cumulative sum, unique); sentinels and the
    removal of hidden tokens are done on the whole batch.
    """

    def __init__(self, objective: SpanCorruption) -> None:
        self.objective, self.rng = objective, np.random.default_rng(0)

    def segment(self, items: int, segments: int) -> np.ndarray:
        first = np.arange(items - 1) < segments - 1
        self.rng.shuffle(first)
        return np.unique(np.cumsum(np.pad(first, [[1, 0]])), return_counts=True)[1]

    def noise_mask(self, length: int) -> np.ndarray:
        noise, spans = noise_counts(length)
        lengths = np.stack([self.segment(length - noise, spans), self.segment(noise, spans)], axis=1).reshape(-1)
        starts = np.zeros(length, dtype=np.int64)
        starts[np.cumsum(lengths)[:-1]] = 1
        return np.cumsum(starts) % 2 == 1

    def with_sentinels(self, tokens: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        first = hidden & ~np.pad(hidden, [[0, 0], [1, 0]])[:, :-1]
        shown = np.where(first, self.objective.sentinel_id + 1 - np.cumsum(first, axis=1), tokens)
        kept = shown[~hidden | first].reshape(len(tokens), -1)
        return np.concatenate([kept, np.full((len(tokens), 1), self.objective.end_id)], axis=1)

    def __call__(self, examples: list[dict[str, list[int]]]) -> dict[str, np.ndarray]:
        tokens = np.array([example["input_ids"] for example in examples])
        noise = np.stack([self.noise_mask(tokens.shape[1]) for _ in examples])
        inputs, labels = self.with_sentinels(tokens, noise), self.with_sentinels(tokens, ~noise)
        return {"input_ids": inputs, "labels": labels, "attention_mask": np.ones_like(inputs)}


class LeanCollator(FlaxMannerCollator):
    """The same with the fastest calls for a segmentation, as a careful author would write it: a harder yardstick."""

    def segment(self, items: int, segments: int) -> np.ndarray:
        first = np.zeros(items, dtype=np.int64)
        first[1:segments] = 1
        self.rng.shuffle(first[1:])
        return np.bincount(np.cumsum(first), minlength=segments)


def measure_objective(
    shards: TokenShards, objective: Any, collators: dict[str, Any], seconds: float, repeats: int
) -> dict[str, list[float]]:
    """Examples per second from shards to arrays, ours and the collators'; those get their lists of ids for free."""
    source = Corrupted(shards.windows(objective.window), objective)
    rng = np.random.default_rng(0)
    lists = [{"input_ids": row.tolist()} for row in source.windows.batch(np.arange(min(BATCH, len(source))))]

    def ours() -> float:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            source.batch(rng.integers(0, len(source), BATCH), np.zeros(BATCH, dtype=np.int64))
            count += BATCH
        return count

    def theirs(collator: Any) -> float:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            collator(lists)
            count += len(lists)
        return count

    return alternate(repeats, ours=ours, **{name: partial(theirs, collator) for name, collator in collators.items()})


def measure_span_corruption(shards: TokenShards, tokenizer: Any, seconds: float, repeats: int) -> dict[str, Any]:
    objective = build_objective("span_corruption", tokenizer)
    collators = {"flax manner": FlaxMannerCollator(objective), "lean": LeanCollator(objective)}
    sample = shards.windows(objective.window).batch([0, 1])
    for collator in collators.values():  # the yardsticks do the same work
        made = collator([{"input_ids": row.tolist()} for row in sample])
        assert objective.restore(made["input_ids"], made["labels"]) == sample.tolist()
    rates = measure_objective(shards, objective, collators, seconds, repeats)
    rate, ratio = median(rates["ours"]), paired_ratio(rates["ours"], rates["flax manner"])
    return {
        "unit": "examples of 512 tokens per second, one core, shards to arrays",
        "ours": rate,
        "numpy collator in the manner of T5 Flax": median(rates["flax manner"]),
        "the same, segmentation written leanly": median(rates["lean"]),
        "ratio": ratio,
        "ratio to the lean one (no bar)": paired_ratio(rates["ours"], rates["lean"]),
        "bar": "≥ 5,000 examples/s and ratio ≥ 10 to the one in the manner of T5 Flax",
        "met": rate >= 5000 and ratio >= 10,
        "runs": rates,
    }


def measure_masked_lm(shards: TokenShards, tokenizer: Any, seconds: float, repeats: int) -> dict[str, Any]:
    from transformers import DataCollatorForLanguageModeling

    mask = tokenizer.convert_tokens_to_ids("<extra_id_99>")  # the text tokenizer has no mask token of its own
    special = tuple(tokenizer.all_special_ids)
    objective = MaskedLM(mask_id=mask, vocab_size=len(tokenizer), special_ids=special, cls_id=mask - 1, sep_id=1)
    tokenizer.mask_token = "<extra_id_99>"
    collators = {"theirs": DataCollatorForLanguageModeling(tokenizer)}
    rates = measure_objective(shards, objective, collators, seconds, repeats)
    return {
        "unit": "examples of 512 tokens per second, one core, shards to arrays",
        "ours": median(rates["ours"]),
        "transformers DataCollatorForLanguageModeling": median(rates["theirs"]),
        "ratio": paired_ratio(rates["ours"], rates["theirs"]),
        "bar": "≥ 10,000 examples/s",
        "met": median(rates["ours"]) >= 10_000,
        "runs": rates,
    }


def environment() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    packages = ("numpy", "tokenizers", "transformers", "torch")
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=60_000_000, help="text to prepare")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each turn of an objective")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()

    result: dict[str, Any] = {"command": "python -m benchmarks.data " + " ".join(sys.argv[1:]), **environment()}
    documents, source = load_text(options.characters)
    result["text"] = source
    learn = documents[: max(1, len(documents) * 6_000_000 // options.characters)]
    tokenizer = train_tokenizer(learn, vocab_size=32_000)
    result["tokenizer"] = f"unigram, {len(tokenizer):,} tokens"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["prepare"] = measure_prepare(documents, tokenizer, folder, options.repeats)
        shards = TokenShards(folder / "shards-0")
        result["span_corruption"] = measure_span_corruption(shards, tokenizer, options.seconds, options.repeats)
        result["masked_lm"] = measure_masked_lm(shards, tokenizer, options.seconds, options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(_rounded(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for part in ("prepare", "span_corruption", "masked_lm"):
        figures = {k: v for k, v in _rounded(result[part]).items() if k not in ("runs", "unit", "CPU seconds")}
        print(part, figures)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
