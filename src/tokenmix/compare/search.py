"""Which layer expression is best for a task at equal cost: found by trials, proposed by Optuna.

A trial is an expression of a space, brought to the baseline's size and trained with one seed. What is found has been
chosen by its luck too: compare it with others by seeds that the search has not used.

    OUT/search.json          every trial, the best first
    OUT/runs/…               one folder per run

Nothing else is stored: trials follow from the seed and from the results before them, so that the same command after a
break proposes the same again and finds the finished runs in their folders.

>>> found = search({"data": {"task": "scan"}, "budget": {"steps": 500}}, Space(), trials=20)
>>> found[0].layer, found[0].value
('dot + random | remix', 97.1)
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenmix.compare.comparison import body_of, compare
from tokenmix.compare.live import Live
from tokenmix.compare.plan import Contender, Judging, check_folder, check_models, check_task, contender
from tokenmix.data.shard_writer import write_json
from tokenmix.mixers import parse
from tokenmix.mixers.expression import Mix, Term

logger = logging.getLogger(__name__)

SEED = 1000  # of trials: far from those that confirm what they find
FAIR = 0.05  # how much larger than the baseline a model may be; one may be smaller
DRAWS = 50  # in vain, before an expression is taken that was not tried yet
Suggest = Callable[[str, tuple[Any, ...]], Any]  #: a choice's name and its values → one of them


@dataclass(frozen=True)
class Space:
    """Expressions `MIXING | CHANNEL`: a sum of attention terms, or one other mixer, or nothing; then one of the channels.

    Without anything before it a channel stands alone if it mixes tokens itself, as `remix` and `gmlp` do. With
    ``decoder`` the decoder of a seq2seq model has an expression of its own.

    >>> space = Space(terms=("dot", "random"), mixers=("lightconv",), channels=("geglu", "remix"))
    >>> list(space)
    ['geglu', …]
    """

    terms: tuple[str, ...] = ("dot", "random", "factorized_random", "dense")
    mixers: tuple[str, ...] = ("lightconv", "dynamicconv", "token_mlp")
    channels: tuple[str, ...] = ("geglu", "mlp", "remix", "gmlp")
    decoder: bool = False

    def __post_init__(self) -> None:
        for name in ("terms", "mixers", "channels"):
            texts = tuple(str(parse(text)) for text in getattr(self, name))
            object.__setattr__(self, name, tuple(dict.fromkeys(texts)))
        if strangers := [text for text in self.terms if not isinstance(parse(text), Term)]:
            raise ValueError(f"{strangers[0]!r} is no attention term that can be added; name it among the mixers")
        if not self.channels:
            raise ValueError("a space has at least one channel, such as geglu")
        if next(iter(self), None) is None:
            raise ValueError("nothing in this space mixes tokens; name a term such as dot, or a mixer")

    def draw(self, suggest: Suggest) -> str | None:
        """One expression, choice by choice; None where nothing would mix tokens."""
        encoder = self._side("", suggest)
        if not self.decoder:
            return encoder
        decoder = self._side("decoder ", suggest)
        return None if encoder is None or decoder is None else f"{encoder} ; {decoder}"

    def _side(self, side: str, suggest: Suggest) -> str | None:
        if self.mixers and suggest(f"{side}mixing", ("terms", "mixer")) == "mixer":
            front = suggest(f"{side}mixer", self.mixers)
        else:
            front = " + ".join(term for term in self.terms if suggest(f"{side}{term}", (False, True)))
        channel = suggest(f"{side}channel", self.channels)
        layer = parse(f"{front} | {channel}" if front else channel)
        return str(layer) if any(part.mixes for part in layer.sublayers) else None

    def choices(self, layer: str) -> dict[str, Any]:
        """What leads to an expression: the inverse of `draw`. With a decoder, one expression stands for both."""
        wanted = _key(f"{layer} ; {layer}" if self.decoder and ";" not in layer else layer)
        for made, found in self._all():
            if _key(made) == wanted:
                return found
        raise ValueError(f"{layer!r} is not in the space searched; it has {self}")

    def __contains__(self, layer: str) -> bool:
        try:
            return bool(self.choices(layer))
        except ValueError:
            return False

    def __iter__(self) -> Iterator[str]:
        return (layer for layer, _ in self._all())

    def _all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every expression with its choices."""
        counter = _Counter()
        while True:
            layer = self.draw(counter)
            if layer is not None:
                yield layer, counter.chosen()
            if not counter.step():
                return

    def __str__(self) -> str:
        parts = {"terms": self.terms, "mixers": self.mixers, "channels": self.channels}
        return "; ".join(f"{name} {', '.join(texts) or '–'}" for name, texts in parts.items())


class _Counter:
    """Makes every series of choices, one after another: a choice is a digit, and its values count up from the first."""

    def __init__(self) -> None:
        self.digits: list[int] = []
        self.choices: list[tuple[str, tuple[Any, ...]]] = []

    def __call__(self, name: str, values: tuple[Any, ...]) -> Any:
        self.choices.append((name, values))
        if len(self.digits) < len(self.choices):
            self.digits.append(0)
        return values[self.digits[len(self.choices) - 1]]

    def chosen(self) -> dict[str, Any]:
        """The values of this series."""
        return {name: values[digit] for (name, values), digit in zip(self.choices, self.digits)}

    def step(self) -> bool:
        """On to the next series; False where this was the last."""
        while self.digits and self.digits[-1] + 1 == len(self.choices[len(self.digits) - 1][1]):
            self.digits.pop()
        self.choices.clear()
        if not self.digits:
            return False
        self.digits[-1] += 1
        return True


def same(layer: str, other: str) -> bool:
    """Whether two expressions, or two `ENCODER ; DECODER`, are one model: the order of a sum does not count.

    >>> same("random + dot|geglu", "dot + random | geglu")
    True
    """
    return _key(layer) == _key(other)


def _key(layer: str) -> tuple[Any, ...]:
    """Both sides' sublayers, with the terms of a sum in alphabetical order."""
    sides = (parse(side.strip()).sublayers for side in layer.split(";"))
    return tuple(tuple(_ordered(part) if isinstance(part, Mix) else part for part in side) for side in sides)


def _ordered(sum_: Mix) -> Mix:
    return replace(sum_, terms=tuple(sorted(sum_.terms, key=str)))


@dataclass(frozen=True)
class Trial:
    """One expression that was tried, and what came of it."""

    layer: str
    value: float | None  #: of the metric; None where the run failed or is not done
    parameters: int | None = None
    steps_per_second: float | None = None
    seconds: float | None = None
    error: str | None = None
    size: float = 1.0  #: divided by the baseline's, where sizes are matched

    @property
    def fair(self) -> bool:
        """Whether it was done, and is no larger than the baseline."""
        return self.value is not None and self.size <= 1 + FAIR


def search(
    settings: Mapping[str, Any],
    space: Space,
    *,
    trials: int = 20,
    start: Sequence[str] = (),
    baseline: str = "dot | geglu",
    seed: int = SEED,
    out: str | Path = "runs/search",
    rule: str = "params",
    judging: Judging | None = None,
    options: Mapping[str, Any] | None = None,
    engine: str = "local",
    jobs: int = 1,
    live: Live | None = None,
    pool: str | Path | None = None,
    collect: bool = False,
) -> list[Trial]:
    """Try expressions of a space, and return them with the best first, those that are too large and failures last.

    Args:
        settings: a part of a `RunConfig` (task, budget, sizes, …), the same for all.
        trials: how many different expressions; fewer where the space has fewer.
        start: expressions to begin with, each of the space.
        baseline: whose size all are brought to by ``rule``: "params", "flops", or "none". It is tried first if the
            space has it.
        seed: of the proposals and of every run.
        options: of the models, above those of the settings.
        jobs: runs side by side; so many are proposed at once.
        pool: folder of the runs, where others share it; by default ``out``.
        collect: train nothing, use what is finished.
    """
    if trials < 1:
        raise ValueError(f"trials={trials}: give at least 1")
    study, states = _study(seed)
    everything = list(space)
    for layer in (*([baseline] if baseline in space else []), *start):
        study.enqueue_trial(space.choices(layer))
    reference = _contender(baseline, options)
    folder = check_folder(out)
    _check(space, settings, judging, options)
    tried: dict[str, Trial] = {}
    while len(tried) < min(trials, len(everything)):
        asked = _ask(study, space, everything, tried, min(jobs, trials - len(tried)), states)
        entries = {reference.name: reference} | {layer: _contender(layer, options) for layer in asked}
        result = compare(
            list(entries.values()), settings, seeds=[seed], out=folder / "trials", rule=rule, judging=judging,
            baseline=reference.name, engine=engine, jobs=jobs, live=live, report=False, pool=pool or folder,
            collect=collect, command="",
        )  # fmt: skip
        higher = result["higher_is_better"]
        for row in result["models"]:
            if row["name"] in asked:
                tried[row["name"]] = trial = _trial(row, result)
                if trial.value is None or not trial.fair:
                    study.tell(asked[row["name"]], state=states.FAIL)
                else:
                    study.tell(asked[row["name"]], trial.value if higher else -trial.value)
                logger.info(
                    "trial %d of %d: %s: %s", len(tried), trials, trial.layer, described(trial, result["metric"])
                )
        ranked = sorted(tried.values(), key=lambda trial: _rank(trial, higher))
        about = {name: result[name] for name in ("task", "split", "metric", "higher_is_better", "budget", "settings")}
        about |= {"space": asdict(space), "seed": seed, "match": rule, "baseline": reference.name}
        write_json(folder / "search.json", {**about, "trials": [asdict(trial) for trial in ranked]})
    return ranked


def _check(
    space: Space, settings: Mapping[str, Any], judging: Judging | None, options: Mapping[str, Any] | None
) -> None:
    """Everything in the space can be built for the body: a mistake shows before anything is trained."""
    body = body_of(settings, check_task(settings, judging or Judging()))
    parts = [_contender(part, options) for part in (*space.terms, *space.mixers, *space.channels)]
    check_models(parts, body, (settings.get("model") or {}).get("options") or {})


def described(trial: Trial, metric: str) -> str:
    """What came of a trial, in a few words.

    >>> described(Trial("dot | geglu", 97.125), "exact_match")
    'exact_match 97.12'
    """
    if trial.value is None:
        return trial.error or "not done"
    return f"{metric} {trial.value:.4g}" + ("" if trial.fair else f", but {trial.size:.2f} of the baseline's size")


def _rank(trial: Trial, higher: bool) -> tuple[bool, bool, float]:
    value = trial.value or 0.0
    return trial.value is None, not trial.fair, -value if higher else value


def _contender(layer: str, options: Mapping[str, Any] | None) -> Contender:
    made = contender(layer)
    return Contender(layer, {**made.model, "options": {**(options or {}), **made.model.get("options", {})}})


def _trial(row: Mapping[str, Any], result: Mapping[str, Any]) -> Trial:
    run, name = row["runs"][0], row["name"]
    value = run["metrics"].get(result["metric"]) if run["status"] == "done" else None
    size = result["match"]["achieved"].get(name, {}).get("ratio", 1.0)
    return Trial(name, value, row["parameters"], row["steps_per_second"], run["seconds"], run["error"], size)


def _study(seed: int) -> tuple[Any, Any]:
    """A study in memory, and the states that a trial of it can have."""
    try:
        import optuna
    except ImportError:
        raise ValueError("searching needs Optuna; install it with: pip install 'tokenmix[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # choices are good together, not each alone: they are modelled jointly, group by group
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=8
        )
    return optuna.create_study(direction="maximize", sampler=sampler), optuna.trial.TrialState


def _ask(
    study: Any, space: Space, everything: Sequence[str], tried: Mapping[str, Trial], count: int, states: Any
) -> dict[str, Any]:
    """Expressions that were not tried yet, with their trials."""
    asked: dict[str, Any] = {}
    choice = random.Random(len(tried))
    for draws in range(DRAWS + count):
        left = [layer for layer in everything if layer not in tried and layer not in asked]
        if len(asked) == count or not left:
            break
        if draws >= DRAWS:
            study.enqueue_trial(space.choices(choice.choice(left)))
        trial = study.ask()
        layer = space.draw(trial.suggest_categorical)
        if layer is None or layer in tried or layer in asked:
            study.tell(trial, state=states.FAIL)
        else:
            asked[layer] = trial
    return asked
