"""Importance weights against the formula for one big table, and the schedule of beta."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.clients.replay_weights import anneal, beta_of, importance_weights
from shoal.errors import UserError

PRIORITIES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


@given(PRIORITIES, st.floats(0, 1), st.data())
def test_weights_are_those_of_the_paper(priorities: list[float], beta: float, data: st.DataObject) -> None:
    """w_i = (1/N * 1/P(i)) ^ beta / max_j w_j over the batch, one item after another."""
    total = sum(priorities)
    chosen = data.draw(st.lists(st.sampled_from(range(len(priorities))), min_size=1, max_size=20))
    plain = [(1 / len(priorities) * 1 / (priorities[i] / total)) ** beta for i in chosen]
    expected = [weight / max(plain) for weight in plain]
    probabilities = np.array([priorities[i] / total for i in chosen])
    weights = importance_weights(probabilities, len(priorities), beta)
    assert weights.dtype == np.float64
    np.testing.assert_allclose(weights, expected, rtol=1e-9)


def test_a_case_worked_by_hand() -> None:
    # Of 4 items one has half of the mass: it is seen twice too often for a uniform draw, others too rarely.
    weights = importance_weights(np.array([0.5, 0.25, 0.125]), 4, 1.0)
    np.testing.assert_allclose(weights, [0.25, 0.5, 1.0])
    np.testing.assert_allclose(importance_weights(np.array([0.5, 0.125]), 4, 0.5), [0.5, 1.0])
    np.testing.assert_allclose(importance_weights(np.array([0.5, 0.125]), 4, 0.0), [1.0, 1.0])


def test_beta_goes_in_a_straight_line_and_stays() -> None:
    beta = anneal(0.4, 1.0, 100)
    assert [beta(0), beta(50), beta(100), beta(1_000_000)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert beta_of(beta, 25) == pytest.approx(0.55)
    assert beta_of(0.3, 25) == 0.3


def test_what_is_no_beta_is_refused() -> None:
    with pytest.raises(UserError, match=r"beta is 1\.5 for batch 7: it must be from 0 to 1"):
        beta_of(lambda number: 1.5, 7)
    with pytest.raises(UserError, match="beta is nan"):
        beta_of(float("nan"), 0)
    with pytest.raises(UserError, match="anneal over 0 batches"):
        anneal(0.4, 1.0, 0)
