"""A claim holds only outside the noise, and never on one seed."""

from __future__ import annotations

import math

import pytest

from tokenmix.recipes.verdicts import (
    Numbers,
    above,
    better,
    every,
    near,
    not_worse,
    ratio_above,
    same_slope,
    within,
    worse,
)

CLEAR = {"a": {"x": [80.0, 80.2, 80.1]}, "b": {"x": [77.0, 77.3, 77.1]}}
NOISY = {"a": {"x": [80.0, 74.0, 79.0]}, "b": {"x": [77.0, 77.3, 77.1]}}
SINGLE = {"a": {"x": [90.0]}, "b": {"x": [10.0]}}


def test_clear_differences_are_decided_both_ways() -> None:
    assert better("a", "b", "x")(Numbers(CLEAR)).verdict == "holds"
    assert better("b", "a", "x")(Numbers(CLEAR)).verdict == "does not hold"
    assert worse("b", "a", "x", 2.0)(Numbers(CLEAR)).verdict == "holds"
    assert worse("b", "a", "x", 5.0)(Numbers(CLEAR)).verdict == "does not hold"


def test_noise_and_single_seeds_are_undecided() -> None:
    assert better("a", "b", "x")(Numbers(NOISY)).verdict == "undecided"
    assert within("a", "b", "x", 0.5)(Numbers(NOISY)).verdict == "undecided"
    for check in (better("a", "b", "x"), within("a", "b", "x", 1.0), ratio_above("a", "b", "x", 2.0)):
        found = check(Numbers(SINGLE))
        assert (found.verdict, found.reason) == ("undecided", "one seed decides nothing")
    assert better("a", "b", "x")(Numbers(CLEAR, quick=True)).verdict == "undecided"


def test_rows_are_paired_by_seed_where_one_is_missing() -> None:
    numbers = Numbers({"a": {"x": [None, 80.2, 80.1]}, "b": {"x": [77.0, 77.3, 77.1]}})
    assert numbers.gain("a", "b", "x") == pytest.approx([2.9, 3.0])
    assert better("a", "b", "x")(numbers).verdict == "holds"
    assert "(2 and 3 seeds)" in better("a", "b", "x")(numbers).ours


def test_a_value_is_above_a_number_in_every_seed_or_undecided() -> None:
    assert above("a", "x", 79.0)(Numbers(CLEAR)).verdict == "holds"
    assert above("a", "x", 82.0)(Numbers(CLEAR)).verdict == "does not hold"
    assert above("a", "x", 79.0)(Numbers(NOISY)).verdict == "undecided"
    assert above("a", "x", 79.0)(Numbers(SINGLE)).verdict == "undecided"
    assert above("c", "x", 79.0)(Numbers(CLEAR)).verdict == "not run yet"


def test_less_is_better_where_said() -> None:
    assert better("b", "a", "x")(Numbers(CLEAR, lower=("x",))).verdict == "holds"


def test_within_needs_the_whole_interval() -> None:
    close = {"a": {"x": [27.1, 27.2, 27.15]}, "b": {"x": [27.3, 27.4, 27.3]}}
    assert within("a", "b", "x", 0.5)(Numbers(close)).verdict == "holds"
    assert within("a", "b", "x", 0.05)(Numbers(close)).verdict == "does not hold"
    assert within("a", "b", "x", 0.18)(Numbers(close)).verdict == "undecided"
    assert not_worse("a", "b", "x", 0.5)(Numbers(close)).verdict == "holds"


def test_thresholds_in_percent_are_shares_of_the_other() -> None:
    """Perplexities around 50, three percent apart."""
    values = {"a": {"x": [51.5, 51.6, 51.5]}, "b": {"x": [50.0, 50.1, 50.0]}}
    numbers = Numbers(values, lower=("x",))
    assert within("a", "b", "x", 5, percent=True)(numbers).verdict == "holds"
    assert within("a", "b", "x", 2, percent=True)(numbers).verdict == "does not hold"
    assert not_worse("a", "b", "x", 5, percent=True)(numbers).verdict == "holds"
    assert worse("a", "b", "x", 2, percent=True)(numbers).verdict == "holds"
    found = better("b", "a", "x", 10, percent=True)(numbers)
    assert (found.verdict, found.reason.endswith("asked: above 10%")) == ("does not hold", True)


def test_counted_quantities_have_no_noise() -> None:
    counted = {"a": {"Params (M)": [247.6]}, "b": {"Params (M)": [300.0]}}
    assert near("a", "Params (M)", 248)(Numbers(counted)).verdict == "holds"
    assert near("a", "Params (M)", 302)(Numbers(counted)).verdict == "does not hold"
    assert better("b", "a", "Params (M)")(Numbers(counted)).verdict == "holds"


def test_what_is_missing_was_not_run() -> None:
    assert better("a", "c", "x")(Numbers(CLEAR)).verdict == "not run yet"
    assert near("c", "Params (M)", 1)(Numbers(CLEAR)).verdict == "not run yet"


@pytest.mark.parametrize(
    "checks, verdict",
    [
        ((better("a", "b", "x"), better("a", "b", "x", 1.0)), "holds"),
        ((better("a", "b", "x"), better("b", "a", "x")), "does not hold"),
        ((better("a", "b", "x"), better("a", "c", "x")), "not run yet"),
        ((better("a", "b", "x"), better("a", "b", "x", 3.0)), "undecided"),
    ],
)
def test_all_of_several(checks: tuple, verdict: str) -> None:
    assert every(*checks)(Numbers(CLEAR)).verdict == verdict


def test_slopes_of_power_laws() -> None:
    def family(slope: float) -> dict[str, dict[str, list[float]]]:
        rows = {}
        for size in (10.0, 20.0, 40.0):
            noise = (0.001, -0.001, 0.0)
            rows[f"{slope} {size}"] = {"size": [size], "y": [math.exp(slope * math.log(size) + n) for n in noise]}
        return rows

    values = family(-0.2) | family(-0.201) | family(-0.4)
    names = {slope: [name for name in values if name.startswith(f"{slope} ")] for slope in (-0.2, -0.201, -0.4)}
    assert same_slope(names[-0.2], names[-0.201], "size", "y", 0.03)(Numbers(values)).verdict == "holds"
    assert same_slope(names[-0.2], names[-0.4], "size", "y", 0.03)(Numbers(values)).verdict == "does not hold"
    assert same_slope(names[-0.2], ["none"], "size", "y", 0.03)(Numbers(values)).verdict == "not run yet"
