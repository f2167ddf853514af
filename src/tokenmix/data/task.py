"""A task: where its examples come from, what a row becomes, how predictions are read and scored.

>>> scan = get_task("scan")
>>> scan.forms, scan.metric, scan.default_split
(('text',), 'exact_match', 'test')
>>> example = scan.load("test", limit=1)[0]
>>> scan.evaluate([scan.postprocess(example.target, example)], [example])
{'exact_match': 100.0}
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmix.data.readers import Row, malformed
from tokenmix.data.sources import Files, Hub, Source, data_folder
from tokenmix.naming import unknown

FORMS = ("text", "classify", "span", "document", "image")


@dataclass(frozen=True, slots=True)
class Example:
    """One example. Its form decides which fields are filled; `label` and `meta` serve scoring in every form.

    text      input, target                       text-to-text
    classify  texts (one, or a pair), label       label: index into `task.labels`, a float for regression
    span      question, context, answers, start   start: character of answers[0] in context, -1 where there is no answer
    document  target                              the text to be predicted
    image     image, label                        uint8 array [height, width, 3] (or [height, width])
    """

    input: str = ""
    target: str = ""
    texts: tuple[str, ...] = ()
    label: int | float | None = None
    question: str = ""
    context: str = ""
    answers: tuple[str, ...] = ()
    start: int = -1
    image: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)


Convert = Callable[[Row, str], "Example | Iterable[Example]"]
Score = Callable[..., dict[str, float]]


@dataclass(frozen=True, eq=False)
class Task:
    """What a data set is to a model.

    sources  where rows come from, in order of preference
    convert  form → function (row, split) → Example or several
    score    (predictions, examples) → metrics, `metric` the headline among them
    decode   generated text → prediction; without it a text names one of `labels`, or stands for itself
    shuffle  the source is sorted by class, so a split is permuted, the same way each time
    lazy     examples are made when asked for
    note     what a table must say about any number made with it
    """

    name: str
    family: str
    sources: tuple[Source, ...]
    convert: Mapping[str, Convert]
    score: Score
    metric: str
    labels: tuple[str, ...] = ()
    decode: Callable[[str, Example], Any] | None = None
    default_split: str = "validation"
    shuffle: bool = False
    lazy: bool = False
    url: str = ""
    note: str = ""
    signature: Callable[[], str] | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        return tuple(self.convert)

    @property
    def generates(self) -> bool:
        """Whether evaluation in the task's first form needs generated text."""
        return self.forms[0] == "text"

    @property
    def regression(self) -> bool:
        """Whether the classify form's label is a number to be met, not a class."""
        return "classify" in self.convert and not self.labels

    @property
    def splits(self) -> tuple[str, ...]:
        names = dict.fromkeys(itertools.chain.from_iterable(source.splits for source in self.sources))
        usual = {"train": 0, "validation": 1, "test": 2}
        return tuple(sorted(names, key=lambda name: usual.get(name, 3)))

    def source(self, split: str, data: str | Path | None = None) -> Source:
        """The source that serves `split`: the first that has it."""
        if split not in self.splits:
            raise unknown(f"split of task {self.name!r}", split, self.splits)
        for source in self.sources:
            if source.has(split, data):
                return source
        raise self._missing(split, data)

    def _missing(self, split: str, data: str | Path | None, reason: str = "") -> FileNotFoundError:
        places = [s.looked_for(split, data) for s in self.sources if isinstance(s, Files) and split in s.splits]
        if self.family == "own":
            return FileNotFoundError(
                f"{self.name!r}: no file for split {split!r}. Looked for {'; '.join(places)} (plain, .gz or .xz); "
                "validation= and test= name files beside the training file"
            )
        hubs = [s.where(split) for s in self.sources if isinstance(s, Hub)]
        folder = data_folder(data)
        looked = "; ".join(places) or "no local folder"
        return FileNotFoundError(
            f"task {self.name!r}, split {split!r}: data not found. Looked for {looked} (plain, .gz or .xz)"
            + ("" if folder else "; no data folder is set")
            + (f". {reason}" if reason else "")
            + f". To get it: {' or '.join(filter(None, [self.url, *hubs]))}; put the official files into that layout "
            + "and pass --data DIR or set TOKENMIX_DATA=DIR"
            + (", or go online so that the Hub can be read" if hubs else "")
        )

    def some(self, examples: Sequence[Example], split: str, data: str | Path | None = None) -> Sequence[Example]:
        """``examples`` of a split; where there are none, an error that says which files hold none."""
        if len(examples):
            return examples
        source = self.source(split, data)
        paths = source.paths(split, data) if isinstance(source, Files) else [source.where(split, data)]
        raise ValueError(
            f"task {self.name!r}, split {split!r}: no examples in {', '.join(map(str, paths))} (those without label or "
            "target do not count); expected at least one"
        )

    def about(self, split: str | None = None, data: str | Path | None = None) -> str:
        """What a table must say about numbers made here, e.g. that the files are a subset; else ""."""
        notes = [self.note]
        for name in [split] if split else self.splits:
            source = next((s for s in self.sources if s.has(name, data)), None)
            notes.append(source.note if source else "")
        return "; ".join(dict.fromkeys(filter(None, notes)))

    def stream(self, split: str, data: str | Path | None = None, form: str | None = None) -> Iterator[Example]:
        """Examples one by one, in the order of the source; reads no more than is asked for."""
        convert = self._converter(form)
        for row in self._rows(split, data):
            yield from _convert(convert, row, split)

    def _rows(self, split: str, data: str | Path | None) -> Iterable[Row]:
        source = self.source(split, data)
        if not isinstance(source, Hub):
            return source.rows(split, data)
        try:
            return source.indexed(split) if self.lazy else source.rows(split)
        except FileNotFoundError as error:
            raise self._missing(split, data, str(error)) from error

    def load(
        self, split: str, data: str | Path | None = None, form: str | None = None, limit: int | None = None
    ) -> Sequence[Example]:
        """The examples of a split (the first `limit` of them) in one of the task's forms, by default its first.

        >>> get_task("scan").load("train", limit=2)[0].input
        'run opposite right twice and walk opposite left twice'
        """
        if self.lazy:
            rows = self._rows(split, data)
            rows = rows if isinstance(rows, Sequence) else list(rows)
            return LazyExamples(rows, range(len(rows))[:limit], self._converter(form), split)
        if not self.shuffle:
            return list(itertools.islice(self.stream(split, data, form), limit))
        examples = list(self.stream(split, data, form))
        random.Random(0).shuffle(examples)
        return examples[:limit]

    def _converter(self, form: str | None) -> Convert:
        form = form or self.forms[0]
        if form not in self.convert:
            raise unknown(f"form of task {self.name!r}", form, self.forms)
        return self.convert[form]

    def postprocess(self, prediction: str, example: Example | None = None) -> Any:
        """A generated text as a prediction: a label's index (-1 for none), a number, or the text itself."""
        if self.decode:
            return self.decode(prediction, example or Example())
        if self.labels:
            text = prediction.strip()
            return self.labels.index(text) if text in self.labels else -1
        return prediction.strip()

    def evaluate(self, predictions: Sequence[Any], examples: Sequence[Example], **options: Any) -> dict[str, float]:
        """Metrics by name, the headline (`task.metric`) first; shares in percent."""
        if len(predictions) != len(examples):
            raise ValueError(
                f"{len(predictions)} predictions for {len(examples)} examples of {self.name!r}: expected as many"
            )
        if not examples:
            raise ValueError(f"no examples of {self.name!r} to evaluate: expected at least one")
        result = self.score(predictions, examples, **options)
        return {self.metric: result[self.metric], **result}


def _convert(convert: Convert, row: Row, split: str) -> Iterable[Example]:
    try:
        made = convert(row, split)
        return (made,) if isinstance(made, Example) else list(made)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise malformed(row, error) from error


class LazyExamples(Sequence[Example]):
    """Examples made when asked for: an image is opened when its turn comes."""

    def __init__(self, rows: Sequence[Row], order: Sequence[int], convert: Convert, split: str):
        self.rows, self.order, self.convert, self.split = rows, order, convert, split

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LazyExamples(self.rows, self.order[index], self.convert, self.split)
        return next(iter(_convert(self.convert, self.rows[self.order[index]], self.split)))


_TASKS: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Make `get_task(task.name)` find it. A task of the same name is replaced."""
    if not set(task.convert) <= set(FORMS):
        raise unknown("form", next(iter(set(task.convert) - set(FORMS))), FORMS)
    _TASKS[task.name] = task
    return task


def _load_families() -> None:
    from tokenmix.data import tasks

    for module in pkgutil.iter_modules(tasks.__path__):
        importlib.import_module(f"{tasks.__name__}.{module.name}")


def get_task(name: str) -> Task:
    """The task of that name; `file:train.jsonl?input=…&target=…` and `images:FOLDER` make one of one's own files."""
    if name in _TASKS:
        return _TASKS[name]
    _load_families()
    if name.startswith("file:"):
        from tokenmix.data.own import file_task

        return file_task(name)
    if name.startswith("images:"):
        from tokenmix.data.tasks.images import folder_task

        return folder_task(name)
    if name.startswith("shards:"):
        raise ValueError(
            f"{name!r} holds token ids to train on, not examples; name a task or a text, such as --task file:text.txt"
        )
    if name not in _TASKS:
        raise unknown("task", name, [*_TASKS, "file:PATH", "images:FOLDER"])
    return _TASKS[name]


def list_tasks(family: str | None = None) -> list[str]:
    """The names of the registered tasks, family by family."""
    _load_families()
    return [t.name for t in sorted(_TASKS.values(), key=lambda t: (t.family, t.name)) if family in (None, t.family)]
