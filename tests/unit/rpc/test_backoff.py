"""Backoff: growth, cap, jitter, reset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.rpc.backoff import Backoff


def test_doubles_up_to_the_cap_and_starts_over_after_a_reset() -> None:
    backoff = Backoff(initial_s=0.1, max_s=0.5, jitter=0)
    assert [backoff.next_delay() for _ in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(0.1)


def test_jitter_spreads_both_ways() -> None:
    low = Backoff(initial_s=1, max_s=9, jitter=0.2, uniform=lambda a, b: a)
    high = Backoff(initial_s=1, max_s=9, jitter=0.2, uniform=lambda a, b: b)
    assert (low.next_delay(), high.next_delay()) == pytest.approx((0.8, 1.2))
    assert (low.next_delay(), high.next_delay()) == pytest.approx((1.6, 2.4))


@given(st.floats(1e-3, 100), st.floats(1e-3, 100), st.floats(0, 1))
def test_never_above_the_cap_and_never_negative(initial_s: float, max_s: float, jitter: float) -> None:
    backoff = Backoff(initial_s, max_s, jitter)
    assert all(0 <= backoff.next_delay() <= max_s for _ in range(20))


@pytest.mark.parametrize("arguments", [(0, 1, 0), (1, 0, 0), (1, 1, -0.1), (1, 1, 1.1)])
def test_senseless_arguments_are_refused(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Backoff(*arguments)
