"""A recipe: a table of a paper as data. Which models, which task, which budget, the printed numbers, and the claims.

A recipe has rows (the models of the table, with the numbers printed there), scales (`tiny` for CI, `bench` for one
GPU, `paper` for the original), and claims that are checked against our own numbers. A scale is made of stages: a stage
trains every row on one task (perhaps from the weights of an earlier stage), or profiles it, and fills columns of the
table.

>>> recipe = get_recipe("synthesizer-table-7")
>>> recipe.row("Syn (FR+V)").printed["Reviews"]
84.61
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmix.naming import unknown

SCALES = ("tiny", "bench", "paper")
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of a table: its name and numbers as printed, and the model. Without a model it is quoted only."""

    name: str
    printed: Mapping[str, float | None]
    preset: str | None = None  #: the model at `paper` scale
    layer: str | None = None  #: its layer at smaller scales; `encoder ; decoder` for two
    options: Settings = field(default_factory=dict)  #: at smaller scales, above the scale's sizes
    multiples: Mapping[str, float] = field(default_factory=dict)  #: of the scale's sizes, e.g. {"layers": 2}
    changes: Settings = field(default_factory=dict)  #: of the preset, at `paper` scale
    searched: bool = False  #: the layer is what the scale's search finds, which begins with the layer above

    def runs(self, scale: str) -> bool:
        """Whether there is a model to train at that scale."""
        return (self.preset if scale == "paper" else self.layer) is not None


@dataclass(frozen=True)
class Stage:
    """One task for every row: `columns` maps a column of the table to what fills it.

    What fills a column is a metric of the judged split ("bleu"), or "parameters", "flops_forward", "steps_per_second",
    "memory_bytes".
    """

    name: str
    settings: Settings  #: a part of a `RunConfig`, or the arguments of a profile
    columns: Mapping[str, str]
    after: str | None = None  #: start from the weights of that stage, row by row and seed by seed
    split: str | None = None
    examples: int | None = None  #: judged; all by default
    beams: int = 1
    profile: bool = False  #: count and time instead of training
    original: bool = False  #: the paper's own models at every scale
    body: str | None = None  #: the scale's by default
    feed_forward: str | None = None  #: in place of the last sublayer of every row, below `paper` scale
    presets: Mapping[str, str] = field(
        default_factory=dict
    )  #: by row, where this stage has other models at `paper` scale


@dataclass(frozen=True)
class Search:
    """How a scale finds the layer of the rows that are searched, before its stages: see `tokenmix.compare.search`."""

    stage: str  #: on that stage's task and budget
    trials: int
    start: tuple[str, ...] = ()  #: expressions to begin with, after the baseline's and the row's own
    space: Settings = field(default_factory=dict)  #: arguments of a `Space`
    settings: Settings = field(default_factory=dict)  #: above the stage's, such as a smaller budget
    examples: int | None = None  #: judged in a trial; as many as in the stage by default


@dataclass(frozen=True)
class Scale:
    """How a recipe is run at one scale."""

    stages: tuple[Stage, ...]
    seeds: int = 1
    sizes: Settings = field(default_factory=dict)  #: of the models (d_model, layers, …); nothing at `paper` scale
    match: str = "none"
    body: str | None = None
    note: str = ""  #: what a table made at this scale must say
    search: Search | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds: "holds", "does not hold", "undecided" or "not run yet", and why."""

    verdict: str
    reason: str
    ours: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that can be checked, with the paper's own numbers for it."""

    text: str
    check: Callable[[Any], Verdict]  #: of `tokenmix.recipes.verdicts.Numbers`
    printed: str = ""


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper."""

    name: str
    place: str  #: "Synthesizer, Table 7"
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    scales: Mapping[str, Scale]
    claims: tuple[Claim, ...]
    baseline: str  #: the row that others are measured against
    lower: tuple[str, ...] = ()  #: columns in which less is better
    #: rows of growing size, by family: perplexity over parameters is drawn
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    doc: str = ""

    def row(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise unknown(f"row of {self.name}", name, [row.name for row in self.rows])

    def scale(self, name: str) -> Scale:
        """The scale of that name."""
        if name not in self.scales:
            raise unknown(f"scale of {self.name}", name, self.scales)
        return self.scales[name]

    def command(self, scale: str = "bench", settings: Mapping[str, Any] | None = None, seeds: int | None = None) -> str:
        """What makes it again, with other settings and seeds than its own.

        >>> get_recipe("gmlp-table-2").command("bench", {"budget": {"steps": 100}})
        'tokenmix reproduce gmlp-table-2 --scale bench --set budget.steps=100'
        """
        options = [f"--set {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in _flat(settings or {})]
        if seeds is not None and seeds != self.scale(scale).seeds:
            options.append(f"--seeds {seeds}")
        return " ".join([f"tokenmix reproduce {self.name} --scale {scale}", *options])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("budget.steps", 100) for {"budget": {"steps": 100}}"""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


_RECIPES: dict[str, Recipe] = {}


def load_recipes() -> dict[str, Recipe]:
    """Every recipe by name: each file of this folder whose RECIPE is one."""
    if not _RECIPES:
        from tokenmix import recipes

        for module in sorted(pkgutil.iter_modules(recipes.__path__), key=lambda m: m.name):
            if "_table_" not in module.name and "_figure_" not in module.name:
                continue
            loaded = importlib.import_module(f"{recipes.__name__}.{module.name}")
            recipe = loaded.RECIPE
            _RECIPES[recipe.name] = recipe
    return dict(sorted(_RECIPES.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> tuple[Any, ...]:
    paper, kind, number = name.split("-")
    return (("remixer", "gmlp", "synthesizer", "tokenmix").index(paper), kind != "table", int(number))


def get_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    found = load_recipes()
    if name not in found:
        raise unknown("recipe", name, found)
    return found[name]
