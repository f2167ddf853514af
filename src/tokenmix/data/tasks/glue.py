"""GLUE: nine tasks and the diagnostic set, in T5's text form and as classification or regression.

Field names and label orders are those of the Hub's `nyu-mll/glue`; `adapt` gives the official files the same.
`glue_rte` is GLUE's RTE form (`sentence1: … sentence2: …`); plain `rte` is SuperGLUE's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from tokenmix.data.labelled import golden, labelled_task, on_labels, prompt
from tokenmix.data.readers import Row, tsv
from tokenmix.data.sources import Files, Hub, Source
from tokenmix.data.task import Example, Task, register
from tokenmix.evaluation import metrics

NLI = ("entailment", "neutral", "contradiction")
SPLITS = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
URL = "https://gluebenchmark.com/tasks"


def renamed(**columns: str) -> Callable[[Row], Iterable[Row]]:
    """An adapter: task's field = file's column. A column that a file lacks (labels of a test set) is left out.

    >>> [dict(row) for row in renamed(label="gold_label")(Row({"gold_label": "neutral"}))]
    [{'label': 'neutral'}]
    """

    def adapt(row: Row) -> Iterable[Row]:
        hidden = ("label", "score")
        fields = {new: row[old] for new, old in columns.items() if new not in hidden or old in row}
        return (row.derive(**fields),)

    return adapt


def _files(folder: str, splits: dict[str, str] = SPLITS, **options: object) -> Files:
    return Files(f"glue/{folder}", splits, **{"read": tsv(), **options})  # type: ignore[arg-type]


def _glue(
    name: str,
    folder: str,
    fields: Sequence[str],
    labels: Sequence[str],
    *local: Source,
    config: str = "",
    **options: object,
) -> None:
    sources = (*(local or (_files(folder),)), Hub("nyu-mll/glue", config or name))
    register(labelled_task(name, "glue", sources, fields, labels, url=URL, **options))  # type: ignore[arg-type]


_glue(
    "cola",
    "CoLA",
    ("sentence",),
    ("unacceptable", "acceptable"),
    _files("CoLA", {"train": "train.tsv", "validation": "dev.tsv"}, read=tsv(("source", "label", "mark", "sentence"))),
    _files("CoLA", {"test": "test.tsv"}),
    score=on_labels(matthews=metrics.matthews),
    metric="matthews",
)
_glue("sst2", "SST-2", ("sentence",), ("negative", "positive"))
_F1 = on_labels(f1=metrics.f1, accuracy=metrics.accuracy)
_MRPC = renamed(sentence1="#1 String", sentence2="#2 String", label="Quality")
_glue(
    "mrpc",
    "MRPC",
    ("sentence1", "sentence2"),
    ("not_equivalent", "equivalent"),
    _files("MRPC", {"test": "msr_paraphrase_test.txt"}, adapt=_MRPC),  # the test set with its labels
    _files("MRPC", adapt=_MRPC),
    score=_F1,
    metric="f1",
)
_glue(
    "qqp",
    "QQP",
    ("question1", "question2"),
    ("not_duplicate", "duplicate"),
    _files(
        "QQP",
        read=tsv(corrupt=3),  # the released training file has three broken lines
        adapt=renamed(question1="question1", question2="question2", label="is_duplicate"),
    ),
    score=_F1,
    metric="f1",
)
_NLI_COLUMNS = renamed(premise="sentence1", hypothesis="sentence2", label="gold_label")
_MNLI_SPLITS = {
    "train": "train.tsv",
    "validation": "dev_matched.tsv",
    "validation_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_MNLI_HUB = {name: name if name == "train" or "mis" in name else f"{name}_matched" for name in _MNLI_SPLITS}
register(
    labelled_task(
        "mnli",
        "glue",
        (
            _files("MNLI", _MNLI_SPLITS, adapt=_NLI_COLUMNS),
            Files(
                "mnli_subset",
                {"train": "train.jsonl", "validation": "heldout.jsonl"},
                note="MNLI: a 4% subset, 1,738 examples held out of it",
            ),
            Hub("nyu-mll/glue", "mnli", splits=_MNLI_HUB),
        ),
        ("hypothesis", "premise"),
        NLI,
        texts=("premise", "hypothesis"),
        url=URL,
    )
)
_glue("qnli", "QNLI", ("question", "sentence"), ("entailment", "not_entailment"))
_glue("glue_rte", "RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment"), prefix="rte", config="rte")
_glue("wnli", "WNLI", ("sentence1", "sentence2"), ("not_entailment", "entailment"))
register(
    labelled_task(
        "ax",
        "glue",
        (
            Files(
                "glue/diagnostic",
                {"test": "diagnostic.tsv"},
                read=tsv(),
                adapt=renamed(premise="sentence1", hypothesis="sentence2"),
            ),
            Hub("nyu-mll/glue", "ax", splits={"test": "test"}),
        ),
        ("hypothesis", "premise"),
        NLI,
        prefix="mnli",
        texts=("premise", "hypothesis"),
        score=on_labels(matthews=metrics.matthews),
        metric="matthews",
        default_split="test",
        url=URL,
        note="labels are hidden: for predictions only",
    )
)


# STS-B: a number from 0 to 5, in text rounded to the nearest 0.2 as T5 does


def _similarity(row: Row) -> float | None:
    value = row.get("score", row.get("label"))
    if value in (None, "", -1, -1.0):
        return None
    number = float(value)
    if not 0 <= number <= 5:
        raise ValueError(f"expected a similarity from 0 to 5, found {value!r}")
    return number


def _stsb_text(row: Row, split: str) -> Example:
    number = _similarity(row)
    text = prompt("stsb", sentence1=row["sentence1"], sentence2=row["sentence2"])
    return Example(input=text, target="" if number is None else f"{round(number * 5) / 5:.1f}", label=number)


def _stsb_numbers(row: Row, split: str) -> Example:
    return Example(texts=(row["sentence1"], row["sentence2"]), label=_similarity(row))


def _number(text: str, example: Example) -> float:
    """The number in the text; -1, which no pair has, where there is none."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def _stsb_score(predictions: Sequence[float], examples: Sequence[Example]) -> dict[str, float]:
    truth = golden(examples)
    return {"pearson": metrics.pearson(predictions, truth), "spearman": metrics.spearman(predictions, truth)}


_STS_COLUMNS = ("genre", "file", "year", "old_index", "score", "sentence1", "sentence2", "source1", "source2")
register(
    Task(
        "stsb",
        "glue",
        (
            _files("STS-B", {"test": "sts-test-labelled.tsv"}, read=tsv(_STS_COLUMNS, optional=2)),
            _files("STS-B"),
            Hub("nyu-mll/glue", "stsb"),
        ),
        {"text": _stsb_text, "classify": _stsb_numbers},
        _stsb_score,
        "pearson",
        decode=_number,
        url=URL,
    )
)
