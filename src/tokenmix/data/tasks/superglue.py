"""SuperGLUE: eight tasks and two diagnostic sets, in T5's text form and as classification.

Field names are those of the Hub's `aps/super_glue`; the `adapt` functions flatten the official jsonl to the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenmix.data.labelled import golden, label_index, labelled_task, on_labels, prompt
from tokenmix.data.readers import Row
from tokenmix.data.sources import Adapt, Files, Hub
from tokenmix.data.task import Example, Task, register
from tokenmix.data.tasks.glue import renamed
from tokenmix.evaluation import metrics

RTE = ("entailment", "not_entailment")
YES = ("False", "True")
SPLITS = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
URL = "https://super.gluebenchmark.com/tasks"


def _sources(folder: str, config: str, adapt: Adapt | None = None) -> tuple[Files, Hub]:
    return Files(f"superglue/{folder}", SPLITS, adapt=adapt), Hub("aps/super_glue", config)


def _register(name: str, folder: str, fields: Sequence[str], labels: Sequence[str], **options: Any) -> None:
    register(labelled_task(name, "superglue", _sources(folder, name), fields, labels, url=URL, **options))


# the cause and the effect are asked for in words, both choices stand in the second text
def _copa_texts(row: Row) -> tuple[str, str]:
    return f"{row['premise']} What was the {row['question']}?", f"choice1: {row['choice1']} choice2: {row['choice2']}"


_register("boolq", "BoolQ", ("passage", "question"), YES, texts=("question", "passage"))
_register(
    "cb",
    "CB",
    ("hypothesis", "premise"),
    ("entailment", "contradiction", "neutral"),
    texts=("premise", "hypothesis"),
    score=on_labels(mean_f1=metrics.mean_f1(3), accuracy=metrics.accuracy),
    metric="mean_f1",
)
_register("copa", "COPA", ("choice1", "choice2", "premise", "question"), ("choice1", "choice2"), texts=_copa_texts)
_register("rte", "RTE", ("hypothesis", "premise"), RTE, texts=("premise", "hypothesis"))
_register(
    "wic",
    "WiC",
    ("sentence1", "sentence2", "word"),
    YES,
    texts=lambda row: (f"{row['word']}: {row['sentence1']}", row["sentence2"]),
)


# --- the two diagnostic sets: predictions of an RTE model


def _parity(predictions: Sequence[int], examples: Sequence[Example]) -> dict[str, float]:
    """Accuracy, and the share of pairs that differ in a pronoun's gender only and get the same answer."""
    pairs: dict[int, set[int]] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        pairs.setdefault(int(example.meta["idx"]) // 2, set()).add(prediction)
    same = sum(len(answers) == 1 for answers in pairs.values())
    return {"accuracy": metrics.accuracy(predictions, golden(examples)), "gender_parity": 100 * same / len(pairs)}


for _name, _folder, _adapt, _score, _metric in (
    ("axb", "AX-b", renamed(premise="sentence1", hypothesis="sentence2", label="label", idx="idx"), None, "matthews"),
    ("axg", "AX-g", None, _parity, "accuracy"),
):
    register(
        labelled_task(
            _name,
            "superglue",
            (
                Files(f"superglue/{_folder}", {"test": f"{_folder}.jsonl"}, adapt=_adapt),
                Hub("aps/super_glue", _name, splits={"test": "test"}, adapt=_adapt),
            ),
            ("hypothesis", "premise"),
            RTE,
            prefix="rte",
            texts=("premise", "hypothesis"),
            score=_score or on_labels(matthews=metrics.matthews, accuracy=metrics.accuracy),
            metric=_metric,
            meta=lambda row: {"idx": row["idx"]},
            default_split="test",
            url=URL,
        )
    )


# --- MultiRC: one example an answer


def _multirc_rows(row: Row) -> Iterable[Row]:
    paragraph = row["passage"]["text"]
    for question in row["passage"]["questions"]:
        for answer in question["answers"]:
            idx = {"paragraph": row["idx"], "question": question["idx"], "answer": answer["idx"]}
            texts = {"paragraph": paragraph, "question": question["question"], "answer": answer["text"]}
            yield row.derive(**texts, label=answer.get("label"), idx=idx)


def _without_markup(text: str) -> str:
    return re.sub("</?b>", "", text.replace("<br>", " "))


def _multirc_score(predictions: Sequence[int], examples: Sequence[Example]) -> dict[str, float]:
    return metrics.multirc(predictions, golden(examples), [example.meta["question"] for example in examples])


register(
    labelled_task(
        "multirc",
        "superglue",
        (_sources("MultiRC", "multirc", _multirc_rows)[0], Hub("aps/super_glue", "multirc")),
        ("question", "answer", "paragraph"),
        YES,
        texts=lambda row: (row["paragraph"], f"{row['question']} {row['answer']}"),
        clean=_without_markup,
        score=_multirc_score,
        metric="f1a",
        meta=lambda row: {"question": (row["idx"]["paragraph"], row["idx"]["question"])},
        url=URL,
    )
)


# --- ReCoRD: which entity fills @placeholder


def _record_rows(row: Row) -> Iterable[Row]:
    text = row["passage"]["text"]
    entities = list(dict.fromkeys(text[e["start"] : e["end"] + 1] for e in row["passage"]["entities"]))
    for question in row["qas"]:
        answers = list(dict.fromkeys(answer["text"] for answer in question.get("answers", ())))
        idx = {"passage": row["idx"], "query": question["idx"]}
        yield row.derive(passage=text, query=question["query"], entities=entities, answers=answers, idx=idx)


def _record_passage(text: str) -> str:
    """As T5 does: the summary's bullets become sentences of the passage."""
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
    return re.sub(r"\n@highlight\n", ". ", text)


def _record_text(row: Row, split: str) -> Iterable[Example]:
    """One example an answer in training; one a query elsewhere, scored against all answers."""
    fields = {"query": row["query"], "entities": ", ".join(row["entities"]), "passage": _record_passage(row["passage"])}
    meta = {"answers": tuple(row["answers"]), "query": tuple(row["idx"].values())}
    answers = row["answers"] or [""]
    for answer in answers if split == "train" else answers[:1]:
        yield Example(input=prompt("record", **fields), target=answer, meta=meta)


def _record_classes(row: Row, split: str) -> Iterable[Example]:
    """One example an entity: does it fill the gap? The entity with the highest prediction is the answer."""
    for entity in row["entities"]:
        texts = (_record_passage(row["passage"]), row["query"].replace("@placeholder", entity))
        label = int(entity in row["answers"]) if row["answers"] else None
        meta = {"answers": tuple(row["answers"]), "query": tuple(row["idx"].values()), "entity": entity}
        yield Example(texts=texts, label=label, meta=meta)


def _record_score(predictions: Sequence[Any], examples: Sequence[Example]) -> dict[str, float]:
    """F1 and exact match per query. A text is the answer; of numbers (classify form) the highest one's entity is."""
    best: dict[Any, tuple[float, str, Sequence[str]]] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        query, answers = example.meta["query"], example.meta["answers"]
        if not answers:
            raise ValueError("these ReCoRD examples carry no answers (the hidden test set?); evaluate on validation")
        value, text = (0.0, prediction) if isinstance(prediction, str) else (float(prediction), example.meta["entity"])
        if query not in best or value > best[query][0]:
            best[query] = (value, text, answers)
    return metrics.squad([text for _, text, _ in best.values()], [answers for *_, answers in best.values()])


register(
    Task(
        "record",
        "superglue",
        (_sources("ReCoRD", "record", _record_rows)[0], Hub("aps/super_glue", "record")),
        {"text": _record_text, "classify": _record_classes},
        _record_score,
        "f1",
        labels=YES,
        decode=lambda text, example: text.strip(),
        url=URL,
    )
)


# --- WSC: the referent in words, trained on the correct ones only


def _wsc_rows(row: Row) -> Iterable[Row]:
    return (row.derive(**row["target"], text=row["text"], idx=row["idx"], label=row.get("label")),)


def mark_pronoun(text: str, pronoun: str, index: int) -> str:
    """The text with `*pronoun*`; `index` counts words.

    Punctuation stays outside, and a wrong index (there are a few in the release) goes to the nearest such word.

    >>> mark_pronoun("Good for him, he said.", "him", 2)
    'Good for *him*, he said.'
    """
    words = text.split(" ")
    whole = re.compile(rf"(?<!\w){re.escape(pronoun)}(?!\w)", re.I)
    places = [i for i, word in enumerate(words) if whole.search(word)]
    if not places:
        raise ValueError(f"expected the pronoun {pronoun!r} in {text[:80]!r}")
    at = min(places, key=lambda i: abs(i - index))
    words[at] = whole.sub(lambda match: f"*{match.group()}*", words[at], count=1)
    return " ".join(words)


def _wsc_text(row: Row, split: str) -> Iterable[Example]:
    label = label_index(row.get("label"), YES)
    if split == "train" and not label:
        return
    text = mark_pronoun(row["text"], row["span2_text"], row["span2_index"])
    yield Example(input=f"wsc: {text}", target=row["span1_text"], label=label)


def _wsc_classes(row: Row, split: str) -> Example:
    text = mark_pronoun(row["text"], row["span2_text"], row["span2_index"])
    return Example(texts=(text, row["span1_text"]), label=label_index(row.get("label"), YES))


register(
    Task(
        "wsc",
        "superglue",
        (_sources("WSC", "wsc", _wsc_rows)[0], Hub("aps/super_glue", "wsc.fixed")),
        {"text": _wsc_text, "classify": _wsc_classes},
        on_labels(accuracy=metrics.accuracy),
        "accuracy",
        labels=YES,
        decode=lambda text, example: int(metrics.wsc_match(text, example.target)),
        url=URL,
    )
)
