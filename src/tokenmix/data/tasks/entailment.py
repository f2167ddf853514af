"""Natural language inference beyond GLUE (`mnli`, `qnli`: see glue.py): SNLI, Adversarial, conjunctive, abductive."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenmix.data.labelled import labelled_task
from tokenmix.data.readers import Row, find_file, jsonl, numbered_lines, tsv
from tokenmix.data.sources import Files, Hub, Source
from tokenmix.data.task import register
from tokenmix.data.tasks.glue import NLI, renamed

LETTERS = {"e": "entailment", "n": "neutral", "c": "contradiction"}


def _nli(name: str, *sources: Source, **options: Any) -> None:
    fields = ("hypothesis", "premise")
    task = labelled_task(
        name, "entailment", sources, fields, NLI, texts=("premise", "hypothesis"), aliases=LETTERS, **options
    )
    register(task)


# --- SNLI: pairs without a majority label (gold_label "-", on the Hub -1) are left out, as everyone does


def _snli_official(row: Row) -> Iterable[Row]:
    fields = {"premise": row["sentence1"], "hypothesis": row["sentence2"], "label": row["gold_label"]}
    return () if fields["label"] == "-" else (row.derive(**fields),)


_nli(
    "snli",
    Files(
        "snli_1.0",
        {s: f"snli_1.0_{f}.jsonl" for s, f in (("train", "train"), ("validation", "dev"), ("test", "test"))},
        adapt=_snli_official,
    ),
    Files("snli_subset", {"train": "train_subset.jsonl"}, note="SNLI: 13% of the training set; dev and test complete"),
    Files("snli_subset", {"validation": "validation.tsv", "test": "test.tsv"}),
    Hub("stanfordnlp/snli", adapt=lambda row: () if row["label"] == -1 else (row,)),
    url="https://nlp.stanford.edu/projects/snli",
)


# --- Adversarial NLI, each round and all three


def _anli_sources(rounds: tuple[int, ...]) -> tuple[Source, ...]:
    adapt = renamed(premise="context", hypothesis="hypothesis", label="label")
    names = {"train": "train", "validation": "dev", "test": "test"}
    official = {split: tuple(f"R{n}/{name}.jsonl" for n in rounds) for split, name in names.items()}
    hub = {split: "+".join(f"{name}_r{n}" for n in rounds) for split, name in names.items()}
    return (
        Files("anli_v1.0", official, adapt=adapt),
        Files("anli_dev", {"validation": tuple(f"R{n}_dev.jsonl" for n in rounds)}),
        Hub("facebook/anli", splits=hub),
    )


_nli("anli", *_anli_sources((1, 2, 3)), url="https://dl.fbaipublicfiles.com/anli/anli_v1.0.zip")
for _round in (1, 2, 3):
    _nli(
        f"anli_r{_round}",
        *_anli_sources((_round,)),
        prefix="anli",
        url="https://dl.fbaipublicfiles.com/anli/anli_v1.0.zip",
    )

_nli(
    "conjnli",
    Files(
        "conjnli",
        {"train": "adversarial_train_15k.tsv", "validation": "conj_dev.tsv", "test": "conj_test.tsv"},
        read=tsv(),
        adapt=renamed(premise="Premise", hypothesis="Hypothesis", label="Label"),
    ),
    url="https://github.com/swarnaHub/ConjNLI (folder data)",
)


# --- abductive NLI (ART): which of two hypotheses explains what was observed


def _art(path: Path) -> Iterator[Row]:
    """Official files: `train.jsonl`, and `train-labels.lst` beside it with 1 or 2 on each line."""
    labels_path = find_file(path.parent, path.name.split(".")[0] + "-labels.lst")
    labels = [line.strip() for _, line in numbered_lines(labels_path)] if labels_path else None
    number = 0
    for number, row in enumerate(jsonl(path), 1):
        if labels is not None and number > len(labels):
            break
        yield row.derive(**{**row, "label": labels[number - 1]} if labels else row)
    if labels is not None and number != len(labels):
        raise ValueError(f"{labels_path} has {len(labels)} labels: expected one for each row of {path}")


def _from_one(row: Row) -> Iterable[Row]:
    """Labels 1 and 2 as they are written in the files, to hyp1 and hyp2; Hub names to the files' names."""
    names = {"observation_1": "obs1", "observation_2": "obs2", "hypothesis_1": "hyp1", "hypothesis_2": "hyp2"}
    fields = {names.get(key, key): value for key, value in row.items()}
    label = str(fields.pop("label", "") or "")
    return (row.derive(**fields, **({"label": f"hyp{label}"} if label not in ("", "0") else {})),)


def _held_out(row: Row) -> bool:
    """A tenth of the stories: all hypotheses of a story fall on the same side."""
    return zlib.crc32((row["obs1"] + row["obs2"]).encode()) % 10 == 0


_SUBSET = "abductive NLI: a 6,500-example subset of the training set, a tenth of its stories held out for validation"
register(
    labelled_task(
        "anli_abductive",
        "entailment",
        (
            Files(
                "art",
                {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"},
                read=_art,
                adapt=_from_one,
            ),
            Files(
                "art_abductive_nli_subset",
                {"train": "train_subset.jsonl"},
                adapt=lambda row: () if _held_out(row) else _from_one(row),
                note=_SUBSET,
            ),
            Files(
                "art_abductive_nli_subset",
                {"validation": "train_subset.jsonl"},
                adapt=lambda row: _from_one(row) if _held_out(row) else (),
                note=_SUBSET,
            ),
            Hub("allenai/art", "anli", splits={"train": "train", "validation": "validation"}, adapt=_from_one),
        ),
        ("hyp1", "hyp2", "obs1", "obs2"),
        ("hyp1", "hyp2"),
        texts=lambda row: (f"{row['obs1']} {row['obs2']}", f"hyp1: {row['hyp1']} hyp2: {row['hyp2']}"),
        url="http://abductivecommonsense.xyz",
    )
)
