"""Mixtures: one endless stream of examples out of several tasks, at stated rates, drawn from a seed.

>>> mixture = Mixture({"small": ["a", "b"], "large": list(range(98))}, seed=1)
>>> mixture.rates
{'large': 0.98, 'small': 0.02}
>>> mixture[1_000_000] == Mixture({"large": list(range(98)), "small": ["a", "b"]}, seed=1)[1_000_000]
True

Example k is a pure function of (seed, k). The stream goes in blocks of 65,536 examples. A block holds each component at
its rate (rounded to whole examples, one at least), in an order of its own; and each component is read in a shuffled
order of its own, every example once before any comes again. So the rates are met, not only expected.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenmix.data.objectives import Corrupted
from tokenmix.data.randomness import bits, key, permute
from tokenmix.naming import unknown

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]
BLOCK = 1 << 16
RULES = ("proportional", "equal", "temperature", "capped")

# Training examples as published. WNLI is left out, as T5 does: its training set misleads, and WSC is the same task.
# WSC counts the examples whose referent is the correct one; ReCoRD one example per answer.
GLUE = {
    "cola": 8_551, "sst2": 67_349, "mrpc": 3_668, "qqp": 363_849, "stsb": 5_749, "mnli": 392_702, "qnli": 104_743,
    "glue_rte": 2_490,
}  # fmt: skip
SUPERGLUE = {
    "boolq": 9_427, "cb": 250, "copa": 400, "multirc": 27_243, "record": 138_854, "rte": 2_490, "wic": 5_428,
    "wsc": 259,
}  # fmt: skip
MIXTURES: dict[str, dict[str, int]] = {
    "glue": GLUE,
    "superglue": SUPERGLUE,
    "en_mix": GLUE | SUPERGLUE | {"squad": 87_599},
}


def mixing_rates(
    sizes: Mapping[str, int], rule: str = "proportional", temperature: float = 2.0, cap: int | None = None
) -> dict[str, float]:
    """The share of each component, by the number of its examples.

    `proportional` to the size; `equal`; `temperature`, size^(1/T); `capped`, no size counts for more than ``cap``. A
    cap that is given holds for `proportional` and `temperature` too (T5 caps first, then takes the root).

    >>> mixing_rates({"a": 900, "b": 100}, "capped", cap=300)
    {'a': 0.75, 'b': 0.25}
    """
    if rule not in RULES:
        raise unknown("mixing rule", rule, RULES)
    if rule == "capped" and cap is None:
        raise ValueError("rule 'capped' needs cap=…, the largest size that counts, for example cap=65536")
    if temperature <= 0 or (cap is not None and cap < 1):
        raise ValueError(
            f"temperature={temperature}, cap={cap}: expected a positive temperature and a cap of 1 or more"
        )
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"component {name!r} has no examples; leave it out of the mixture")
    power = {"equal": 0.0, "temperature": 1 / temperature}.get(rule, 1.0)
    weights = {name: float(size if cap is None else min(size, cap)) ** power for name, size in sizes.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


class Mixture:
    """Examples of several components in one endless sequence: `mixture[k]` for any k.

    Args:
        components: name → anything with a length and `[i]`. One that has `batch(indices, epochs)` (see `Corrupted`) is
            asked for whole batches, and is told how often it has been read through.
        rates: name → share, instead of a rule; shares are normalised.
        rule, temperature, cap: see `mixing_rates`.
        sizes: name → size that the rule goes by, instead of the lengths (the published ones, say, for a subset).
        seed: of the draw.
    """

    endless = True

    def __init__(
        self,
        components: Mapping[str, Any],
        rates: Mapping[str, float] | None = None,
        *,
        rule: str = "proportional",
        temperature: float = 2.0,
        cap: int | None = None,
        sizes: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        if not components:
            raise ValueError("a mixture needs at least one component")
        self.names = sorted(components)
        self.components = {name: components[name] for name in self.names}
        self.sizes = {name: len(component) for name, component in self.components.items()}
        by_rule = mixing_rates(
            self.sizes | {n: s for n, s in (sizes or {}).items() if n in self.sizes}, rule, temperature, cap
        )
        if rates is not None:
            if set(rates) != set(self.names) or min(rates.values()) <= 0:
                raise ValueError(
                    f"rates {dict(rates)} must give every component a positive share: {', '.join(self.names)}"
                )
            by_rule = {name: rates[name] / sum(rates.values()) for name in self.names}
        self.rates = by_rule
        self.seed = seed
        self._slots = _apportion(np.array([self.rates[name] for name in self.names]))
        self._lengths = np.array([self.sizes[name] for name in self.names])
        self._blocks: dict[int, tuple[Ints, Ints]] = {}

    def __len__(self) -> int:
        """Examples of all components together; the mixture itself goes on beyond."""
        return int(self._lengths.sum())

    def _block(self, number: int) -> tuple[Ints, Ints]:
        """For each place of a block: its component, and how many of that component come before it in the block."""
        if number not in self._blocks:
            sorted_components = np.repeat(np.arange(len(self.names)), self._slots)
            order = np.argsort(bits(key(self.seed, number), np.arange(BLOCK)), kind="stable")
            components = sorted_components[order]
            before = np.empty(BLOCK, dtype=np.int64)
            starts = np.cumsum(self._slots) - self._slots
            before[np.argsort(components, kind="stable")] = np.arange(BLOCK) - starts[sorted_components]
            if len(self._blocks) >= 4:  # a reader goes forward: a few blocks are enough
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[number] = components, before
        return self._blocks[number]

    def locate(self, numbers: ArrayLike) -> tuple[Ints, Ints, Ints]:
        """For examples ``numbers`` of the mixture: the component (of `names`), the index in it, and its epoch."""
        numbers = np.atleast_1d(np.asarray(numbers, dtype=np.int64))
        component, epoch, index = (np.empty(len(numbers), dtype=np.int64) for _ in range(3))
        for block in np.unique(numbers // BLOCK):
            here = numbers // BLOCK == block
            components, before = self._block(int(block))
            component[here] = components[numbers[here] % BLOCK]
            index[here] = block * self._slots[component[here]] + before[numbers[here] % BLOCK]
        epoch[:], index[:] = np.divmod(index, self._lengths[component])
        for number in np.unique(component):
            here, name = component == number, self.names[number]
            keys = key(self.seed, zlib.crc32(name.encode()), epoch[here])
            index[here] = permute(index[here], self.sizes[name], keys)
        return component, index, epoch

    def batch(self, numbers: ArrayLike, epochs: Any = None) -> list[Any]:
        """Examples ``numbers`` of the mixture, in order. (``epochs`` is for streams; a mixture has none of its own.)"""
        component, index, epoch = self.locate(numbers)
        examples: list[Any] = [None] * len(component)
        for number in np.unique(component):
            rows, source = np.flatnonzero(component == number), self.components[self.names[number]]
            if hasattr(source, "batch") and not hasattr(source, "maker"):  # text; a task's batches are padded already
                arrays = source.batch(index[rows], epoch[rows])
                made = [{name: values[row] for name, values in arrays.items()} for row in range(len(rows))]
            else:
                made = [source[int(place)] for place in index[rows]]
            for row, example in zip(rows, made, strict=True):
                examples[row] = example
        return examples

    def __getitem__(self, number: int) -> Any:
        if number < 0:
            raise IndexError(f"example {number}: a mixture has no end to count from")
        return self.batch([number])[0]


def _apportion(rates: NDArray[np.float64]) -> Ints:
    """Whole places of a block for each component: one at least, the rest by largest remainder; `BLOCK` in all."""
    if len(rates) > BLOCK:
        raise ValueError(f"{len(rates)} components; a mixture can have {BLOCK}")
    slots = np.maximum(np.floor(rates * BLOCK).astype(np.int64), 1)
    while (rest := BLOCK - int(slots.sum())) != 0:
        missing = rates * BLOCK - slots
        takes = np.argsort(-missing if rest > 0 else missing, kind="stable")
        if rest < 0:
            takes = takes[slots[takes] > 1]
        slots[takes[: abs(rest)]] += np.sign(rest)
    return slots


@contextmanager
def leave_out_missing(mixture: str, task: str) -> Iterator[None]:
    """Where the data of a task of a mixture is not here, a warning; of other tasks it is an error as ever."""
    try:
        yield
    except FileNotFoundError as error:
        if mixture not in MIXTURES:
            raise
        logger.warning("mixture %s goes without %s: %s", mixture, task, error)


def named_mixture(
    name: str,
    load: Callable[[str], Sequence[Any]],
    *,
    skip_missing: bool = False,
    published: bool = False,
    **options: Any,
) -> Mixture:
    """The mixture ``name`` (`glue`, `superglue`, `en_mix`) with the examples that ``load(task name)`` gives.

    Args:
        skip_missing: leave out, with a warning, the tasks whose data is not there (``load`` raises FileNotFoundError).
        published: take the rates from the published sizes, also where only a subset of the data is there.
        options: of `Mixture`.
    """
    if name not in MIXTURES:
        raise unknown("mixture", name, MIXTURES)
    components = {}
    for task in MIXTURES[name]:
        with leave_out_missing(name, task) if skip_missing else nullcontext():
            components[task] = load(task)
    if not components:
        raise ValueError(f"none of the tasks of mixture {name!r} has data: {', '.join(MIXTURES[name])}")
    return Mixture(components, sizes=MIXTURES[name] if published else None, **options)


@dataclass(frozen=True)
class Mapped:
    """A sequence seen through a function: `Mapped(examples, tokenize)[i]` is `tokenize(examples[i])`."""

    source: Sequence[Any]
    function: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.source[index])


def multitask_pretraining(
    tasks: Mapping[str, Sequence[Any]],
    text: Corrupted,
    tokenize: Callable[[Any], Any],
    *,
    cap: int = 1 << 19,
    seed: int = 0,
    **options: Any,
) -> Mixture:
    """Tasks and text in one mixture, as T5 co-trains: the text is one more task, whose size counts for ``cap`` at most.

    ``tokenize`` turns an example of a task into what ``text`` gives: a mapping with `input_ids` and `labels`.
    """
    components = {name: Mapped(examples, tokenize) for name, examples in tasks.items()}
    if "text" in components:
        raise ValueError("a task is named 'text', which is the name of the text objective in the mixture; rename it")
    return Mixture(components | {"text": text}, rule="capped", cap=cap, seed=seed, **options)
