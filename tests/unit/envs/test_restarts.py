"""Faults are counted within a window; beyond the limit the user is told."""

from __future__ import annotations

import pytest

from shoal.envs.restarts import Restarts, seed_after
from shoal.errors import UserError


def test_faults_beyond_the_limit_within_the_window_are_refused() -> None:
    now = 0.0
    restarts = Restarts(2, window_s=10, clock=lambda: now)
    restarts.count("a")
    now = 9.0
    restarts.count("b")
    now = 10.0  # the first is over
    restarts.count("c")
    now = 18.9
    with pytest.raises(UserError, match=r"broke 3 times within 10 s and env.max_restarts is 2: .*last: d$"):
        restarts.count("d")
    assert restarts.num_restarts == 3


def test_no_restart_may_be_allowed_at_all() -> None:
    with pytest.raises(
        UserError, match=r"broke once within 600 s and env.max_restarts is 0: .*: it fell over$"
    ):
        Restarts(0).count("it fell over")


def test_seeds_after_faults_differ_and_can_be_repeated() -> None:
    seeds = [seed_after(seed, index, num) for seed in (0, 1) for index in range(20) for num in range(5)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 30 for seed in seeds)
    assert seed_after(1, 2, 3) == seed_after(1, 2, 3)
