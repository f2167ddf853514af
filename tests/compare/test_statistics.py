"""Statistics of a comparison, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tokenmix.compare.statistics import (
    bootstrap_interval,
    deviation,
    difference,
    mean,
    p_value,
    student_interval,
    wide_interval,
)

RNG = np.random.default_rng(7)


def test_mean_and_deviation_are_numpys_with_n_minus_one() -> None:
    values = RNG.normal(size=9).tolist()
    assert mean(values) == pytest.approx(np.mean(values))
    assert deviation(values) == pytest.approx(scipy.stats.tstd(values))
    assert mean([]) is None
    assert deviation([1.0]) is None


@pytest.mark.parametrize("n", [8, 30, 300])
def test_bootstrap_interval_is_scipys(n: int) -> None:
    values = RNG.normal(1.0, 2.0, size=n)
    ours = bootstrap_interval(values, resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours[0] == pytest.approx(theirs.low, abs=0.04 * width)
    assert ours[1] == pytest.approx(theirs.high, abs=0.04 * width)


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_few_seeds_are_enumerated_and_close_to_scipys_draws(n: int) -> None:
    values = RNG.normal(1.0, 2.0, size=n)
    ours = bootstrap_interval(values)
    assert ours == bootstrap_interval(values, seed=99)  # nothing is drawn
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=50_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert np.allclose(ours, [theirs.low, theirs.high], atol=0.05 * (theirs.high - theirs.low) + 1e-12)


def test_paired_difference_is_scipys_paired_bootstrap_and_t_test() -> None:
    model, baseline = RNG.normal(3.0, 1.0, size=20), RNG.normal(1.0, 1.0, size=20)
    found = difference(model.tolist(), baseline.tolist())
    test = scipy.stats.ttest_rel(model, baseline)
    assert found.value == pytest.approx((model - baseline).mean())
    assert found.p == pytest.approx(test.pvalue)
    theirs = scipy.stats.bootstrap(
        (model, baseline),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert found.interval is not None
    assert np.allclose(found.interval, [theirs.low, theirs.high], atol=0.05 * (theirs.high - theirs.low))
    assert found.significant


def test_students_interval_is_scipys() -> None:
    values = RNG.normal(size=5)
    theirs = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert np.allclose(student_interval(values), [theirs.low, theirs.high])
    low, high = wide_interval(values)
    assert low <= min(theirs.low, bootstrap_interval(values)[0])
    assert high >= max(theirs.high, bootstrap_interval(values)[1])


def test_nothing_is_significant_inside_the_noise() -> None:
    rng = np.random.default_rng(3)
    wrong = sum(
        bool(difference(rng.normal(size=3).tolist(), rng.normal(size=3).tolist()).significant) for _ in range(400)
    )
    assert wrong <= 0.08 * 400  # 5% is expected; the bootstrap alone would call about a quarter significant


def test_one_seed_is_compared_over_examples_or_not_at_all() -> None:
    right, wrong = [100.0] * 80 + [0.0] * 20, [100.0] * 40 + [0.0] * 60
    found = difference([80.0], [40.0], (right, wrong))
    assert (found.over, found.count, found.significant) == ("examples", 100, True)
    assert found.interval is not None
    assert found.interval[0] < 40 < found.interval[1]
    alone = difference([80.0], [40.0])
    assert (alone.interval, alone.significant, alone.over) == (None, None, "nothing")


def test_differences_without_spread() -> None:
    assert p_value([0.0, 0.0, 0.0]) == 1.0
    assert p_value([2.0, 2.0]) == 0.0
    assert difference([1.0, 2.0], [1.0, 2.0]).significant is False


def test_unequal_seeds_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected the same seeds"):
        difference([1.0, 2.0], [1.0])
