"""Means and spreads of returns, and when one set of them is above another."""

from __future__ import annotations

import random
import statistics

import pytest

from services.learner.returns import MAX_STANDARD_ERRORS, Returns, standard_errors_above


def test_running_figures_are_those_of_the_whole() -> None:
    values = [random.Random(1).gauss(1e6, 3.0) for _ in range(1000)]
    returns = Returns.of(values)
    assert returns.num == 1000
    assert returns.mean == pytest.approx(statistics.fmean(values))
    assert returns.variance == pytest.approx(statistics.variance(values), rel=1e-6)
    assert Returns.from_json(returns.to_json()) == returns
    assert Returns().variance is None


def test_hand_worked_difference() -> None:
    these, those = Returns.of([4.0, 6.0, 8.0]), Returns.of([1.0, 3.0])
    # Variances 4 and 2: (6 - 2) / sqrt(4/3 + 2/2).
    assert standard_errors_above(these, those) == pytest.approx(4 / (7 / 3) ** 0.5)
    assert standard_errors_above(those, these) == pytest.approx(-4 / (7 / 3) ** 0.5)


def test_returns_without_any_spread() -> None:
    """Acrobot: every untrained episode ends at the limit of -500."""
    same = Returns.of([-500.0] * 64)
    assert standard_errors_above(same, same) == 0.0
    assert standard_errors_above(Returns.of([-499.0] * 9), same) == MAX_STANDARD_ERRORS
    assert standard_errors_above(Returns.of([-501.0] * 9), same) == -MAX_STANDARD_ERRORS


def test_the_spread_of_a_single_episode_is_that_of_the_others() -> None:
    one, many = Returns.of([0.0]), Returns.of([9.0, 10.0, 11.0])
    # Variance 1 on both sides: 10 / sqrt(1/3 + 1).
    assert standard_errors_above(many, one) == pytest.approx(10 / (4 / 3) ** 0.5)


def test_too_few_episodes_say_nothing() -> None:
    assert standard_errors_above(Returns.of([1.0, 2.0]), Returns.of([0.0])) is None
    assert standard_errors_above(Returns.of([1.0] * 50), Returns()) is None
    assert standard_errors_above(Returns(), Returns.of([1.0] * 50)) is None
