"""What several seeds say: mean, deviation, and the difference to a baseline with an interval.

Models are compared in pairs: seed by seed (each seed is one order of the data, the same for every model), or, where
there is one seed only, example by example. A difference is called significant only if the bootstrap interval and
Student's t agree: with three seeds the bootstrap alone would be too sure.

>>> difference([98.0, 97.0, 99.0], [95.0, 94.5, 95.5]).significant
True
>>> difference([98.0], [95.0]).interval is None
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
RESAMPLES = 10_000
EXACT = 50_000  # so many resamples are enumerated instead of drawn: up to six seeds


@dataclass(frozen=True)
class Difference:
    """A model minus the baseline. `interval`, `p` and `significant` are None where nothing can be said."""

    value: float
    interval: tuple[float, float] | None
    p: float | None
    significant: bool | None
    over: str  #: "seeds", "examples" or "nothing"
    count: int  #: of them


def mean(values: Sequence[float]) -> float | None:
    """The mean, None of nothing.

    >>> mean([1.0, 2.0])
    1.5
    """
    return float(np.mean(values)) if len(values) else None


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds (n − 1 in the denominator), None for fewer than two.

    >>> deviation([1.0, 3.0])
    1.4142135623730951
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def bootstrap_interval(
    values: ArrayLike, confidence: float = CONFIDENCE, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean. All resamples of a few values are enumerated, so that it is exact.

    >>> bootstrap_interval([1.0, 2.0, 3.0])
    (1.0, 3.0)
    """
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n < 2:
        raise ValueError(f"an interval needs at least two values; got {n}")
    if n**n <= EXACT:
        means = data[np.array(list(itertools.product(range(n), repeat=n)))].mean(1)
    else:
        means = _resampled_means(data, resamples, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], method="inverted_cdf")  # a mean that occurs, nothing in between
    return float(low), float(high)


def _resampled_means(data: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    rows = max(1, 4_000_000 // len(data))  # a few dozen megabytes at a time
    parts = [
        data[rng.integers(len(data), size=(min(rows, resamples - start), len(data)))].mean(1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


def student_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean.

    >>> [round(bound, 3) for bound in student_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    import scipy.stats

    data = np.asarray(values, dtype=np.float64)
    if len(data) < 2:
        raise ValueError(f"an interval needs at least two values; got {len(data)}")
    half = scipy.stats.t.ppf((1 + confidence) / 2, len(data) - 1) * data.std(ddof=1) / math.sqrt(len(data))
    return float(data.mean() - half), float(data.mean() + half)


def p_value(differences: ArrayLike) -> float:
    """Two-sided p of Student's paired test that the mean difference is zero.

    >>> round(p_value([1.0, 2.0, 3.0]), 3)
    0.074
    """
    import scipy.stats

    data = np.asarray(differences, dtype=np.float64)
    if np.ptp(data) == 0:  # no spread: the test divides by zero
        return 1.0 if data[0] == 0 else 0.0
    return float(scipy.stats.ttest_1samp(data, 0.0).pvalue)


def wide_interval(differences: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The wider of the bootstrap's and Student's interval on each side: what a claim has to clear."""
    low, high = zip(bootstrap_interval(differences, confidence), student_interval(differences, confidence))
    return min(low), max(high)


def difference(
    model: Sequence[float],
    baseline: Sequence[float],
    examples: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Difference:
    """A model against the baseline, value by value: entry i of both belongs to the same seed.

    ``examples``: scores by example of the model and the baseline, for the case of a single seed.
    """
    if len(model) != len(baseline):
        raise ValueError(
            f"{len(model)} seeds of the model against {len(baseline)} of the baseline: expected the same seeds"
        )
    if not model:
        raise ValueError("no seed is finished for both, the model and the baseline")
    apart = np.asarray(model, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    value, over = float(apart.mean()), "seeds"
    if len(apart) < 2:
        if examples is None or len(examples[0]) < 2 or len(examples[0]) != len(examples[1]):
            return Difference(value, None, None, None, "nothing", 1)
        apart, over = np.asarray(examples[0], dtype=np.float64) - np.asarray(examples[1], dtype=np.float64), "examples"
    low, high = bootstrap_interval(apart)
    p = p_value(apart)
    significant = bool((low > 0 or high < 0) and p < 1 - CONFIDENCE)
    return Difference(value, (low, high), p, significant, over, len(apart))
