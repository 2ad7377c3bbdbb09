"""Interquartile mean and bootstrap interval against hand-worked values."""

from __future__ import annotations

import pytest

from benchmarks.learn.aggregate import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),
        # Two of eight are cut at each end: outliers do not count.
        ([-1000, 2, 3, 4, 5, 6, 7, 100_000], 4.5),
        # One of five.
        ([30, 10, 20, 50, 1000], (20 + 30 + 50) / 3),
        ([7], 7.0),
        # A quarter of three is less than one: nothing is cut.
        ([1, 2, 9], 4.0),
    ],
)
def test_the_interquartile_mean(values: list[float], mean: float) -> None:
    assert interquartile_mean(values) == pytest.approx(mean)


def test_the_interval_of_constants_is_a_point() -> None:
    assert bootstrap_interval([3.0, 3.0, 3.0, 3.0, 3.0]) == (3.0, 3.0)


def test_the_interval_of_two_values() -> None:
    # Of two drawn, both are the lower one in a quarter of all cases, and both the higher one in another.
    assert bootstrap_interval([0.0, 10.0]) == (0.0, 10.0)


def test_the_interval_holds_the_mean_and_leaves_out_the_tails() -> None:
    values = [float(value) for value in range(101)]
    low, high = bootstrap_interval(values)
    assert low < interquartile_mean(values) < high
    # The standard error of this mean is about 3.9 (a plain mean: 2.9); 95 % are about two of them each way.
    assert 37 < low < 46
    assert 54 < high < 63
    assert bootstrap_interval(values) == (low, high), "the same values have the same interval"
