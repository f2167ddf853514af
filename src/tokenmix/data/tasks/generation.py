"""Summaries and replies: CNN/DailyMail, SAMSum, DialogSum, PersonaChat, and the next utterance of a SAMSum dialogue."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenmix.data.readers import Row, json_document, numbered_lines
from tokenmix.data.sources import Files, Hub
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics


def _references(examples: Sequence[Example]) -> list[Sequence[str]]:
    return [example.meta.get("references") or (example.target,) for example in examples]


def _summary_score(predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    return metrics.rouge(predictions, _references(examples))


def _reply_score(
    predictions: Sequence[str], examples: Sequence[Example], vectors: Mapping[str, np.ndarray] | None = None
) -> dict[str, float]:
    """The Synthesizer paper's dialogue metrics; embedding similarity where word `vectors` are given."""
    references = _references(examples)
    result = {f"bleu{n}": metrics.bleu_n(predictions, references, n) for n in (1, 4)}
    result |= {"rougeL": metrics.rouge(predictions, references)["rougeL"], **metrics.meteor(predictions, references)}
    result["cider"] = metrics.cider(predictions, references)
    return result | (metrics.embedding_similarity(predictions, references, vectors) if vectors else {})


def _task(name: str, sources: tuple[Any, ...], convert: Any, score: Any, metric: str, url: str) -> None:
    register(Task(name, "generation", sources, {"text": convert}, score, metric, default_split="test", url=url))


# --- CNN/DailyMail


def _stories(path: Path) -> Iterator[Row]:
    """The official release: a list of addresses per split; the story is the file named by the address's SHA-1."""
    for number, address in numbered_lines(path):
        name = hashlib.sha1(address.encode()).hexdigest() + ".story"
        story = next(
            (p for p in (path.parent / "cnn/stories" / name, path.parent / "dailymail/stories" / name) if p.is_file()),
            None,
        )
        if story is None:
            raise ValueError(
                f"{path}, line {number}: expected {name} in cnn/stories or dailymail/stories for {address!r}"
            )
        article, *highlights = re.split(r"\n+@highlight\n+", story.read_text("utf-8"))
        yield Row({"article": article.strip(), "highlights": "\n".join(h.strip() for h in highlights)}, story, 1)


def _news(row: Row, split: str) -> Example:
    return Example(input=f"summarize: {row['article']}", target=row["highlights"])


_task(
    "cnn_dailymail",
    (
        Files("cnn_dailymail", {s: f"{s}.csv" for s in ("train", "validation", "test")}),
        Files(
            "cnn_dailymail",
            {"train": "all_train.txt", "validation": "all_val.txt", "test": "all_test.txt"},
            read=_stories,
        ),
        Hub("abisee/cnn_dailymail", "3.0.0"),
    ),
    _news,
    _summary_score,
    "rougeL",
    "https://cs.nyu.edu/~kcho/DMQA with the lists of https://github.com/abisee/cnn-dailymail",
)


# --- SAMSum, DialogSum


def _dialogue(row: Row, split: str) -> Example:
    return Example(input=f"summarize: {_one_line(row['dialogue'])}", target=row["summary"])


def _one_line(dialogue: str | None) -> str:
    return " ".join((dialogue or "").split())


def _samsum_json(path: Path) -> Iterator[Row]:
    for number, record in enumerate(json_document(path), 1):
        yield Row(record, f"{path}, dialogue {number}", 1)


_SAMSUM = (
    Files("samsum", {s: f"{s}.csv" for s in ("train", "validation", "test")}),
    Files("samsum", {"train": "train.json", "validation": "val.json", "test": "test.json"}, read=_samsum_json),
    Hub("knkarthick/samsum"),
)
_SAMSUM_URL = "https://arxiv.org/abs/1911.12237 (ancillary files)"
_task("samsum", _SAMSUM, _dialogue, _summary_score, "rougeL", _SAMSUM_URL)


def _dialogsum(row: Row, split: str) -> Example:
    """The test set has three summaries of each dialogue: all are references."""
    summaries = [row[name] for name in ("summary1", "summary2", "summary3") if name in row] or [row["summary"]]
    return Example(
        input=f"summarize: {_one_line(row['dialogue'])}", target=summaries[0], meta={"references": tuple(summaries)}
    )


_DIALOGSUM = {"train": "dialogsum.train.jsonl", "validation": "dialogsum.dev.jsonl", "test": "dialogsum.test.jsonl"}
_task(
    "dialogsum",
    (
        Files("dialogsum", _DIALOGSUM),
        Files("dialogsum_devtest", {s: f for s, f in _DIALOGSUM.items() if s != "train"}),
        Hub(
            "knkarthick/dialogsum",
            note="DialogSum on the Hub: the test set has each dialogue three times, with one summary each",
        ),
    ),
    _dialogsum,
    _summary_score,
    "rougeL",
    "https://github.com/cylnlp/dialogsum (folder DialogSum_Data)",
)


# --- replies


def _next_utterances(row: Row, split: str) -> Iterable[Example]:
    """Every utterance after the first, given those before it and who speaks."""
    turns = [line.strip() for line in (row["dialogue"] or "").splitlines() if ":" in line]
    for at in range(1, len(turns)):
        speaker, _, said = turns[at].partition(":")
        if said.strip():
            yield Example(input=f"reply: {_one_line(' '.join(turns[:at]))} {speaker}:", target=said.strip())


_task("samsum_reply", _SAMSUM, _next_utterances, _reply_score, "bleu4", _SAMSUM_URL)


def _parlai(path: Path) -> Iterator[Row]:
    """ParlAI's format: `1 your persona: …`, then `n utterance<tab>reply<tab><tab>candidates`; 1 starts a dialogue."""
    persona: list[str] = []
    history: list[str] = []
    for number, line in numbered_lines(path):
        index, _, text = line.partition(" ")
        if not index.isdigit():
            raise ValueError(f"{path}, line {number}: expected a line number and a space, found {line[:80]!r}")
        if index == "1":
            persona, history = [], []
        if text.startswith("your persona: "):
            persona.append(text.removeprefix("your persona: "))
            continue
        fields = text.split("\t")
        if len(fields) < 2:
            raise ValueError(f"{path}, line {number}: expected utterance<tab>reply, found {line[:80]!r}")
        history.append(fields[0])
        yield Row({"personality": list(persona), "history": list(history), "reply": fields[1]}, path, number)
        history.append(fields[1])


def _personachat_hub(row: Row) -> Iterable[Row]:
    """On the Hub the reply is the last candidate."""
    return (row.derive(personality=row["personality"], history=row["history"], reply=row["candidates"][-1]),)


def _persona_reply(row: Row, split: str) -> Example:
    persona, history = " ".join(row["personality"]), " ".join(row["history"])
    return Example(input=f"personachat persona: {persona} history: {history}", target=row["reply"])


_task(
    "personachat",
    (
        Files(
            "personachat",
            {s: f"{f}_self_original.txt" for s, f in (("train", "train"), ("validation", "valid"), ("test", "test"))},
            read=_parlai,
        ),
        Hub(
            "bavard/personachat_truecased",
            splits={"train": "train", "validation": "validation"},
            adapt=_personachat_hub,
        ),
    ),
    _persona_reply,
    _reply_score,
    "bleu4",
    "http://parl.ai/downloads/personachat/personachat.tgz",
)
