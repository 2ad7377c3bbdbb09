"""The ladder of epsilons."""

from __future__ import annotations

import numpy as np
import pytest

from services.actor.exploration import epsilons
from shoal.config.tree import ExplorationSection


def test_without_exploration_there_are_none() -> None:
    assert epsilons(ExplorationSection(), "actor-1", 0, 8, 8) == ()


@pytest.mark.parametrize(("num_actors", "num_slots"), [(1, 8), (1, 64), (8, 1), (16, 4)])
def test_however_many_there_are_they_spread_evenly_over_the_ladder(num_actors: int, num_slots: int) -> None:
    section = ExplorationSection(epsilon=0.4, epsilon_spread=7.0)
    found = [
        epsilon
        for actor in range(num_actors)
        for epsilon in epsilons(section, f"actor-{actor}", 0, num_slots, num_slots)
    ]
    assert all(0.4**8 <= epsilon <= 0.4 for epsilon in found)
    # Places on the ladder, 0 to 1: no gap is more than three times an even one.
    places = np.sort((np.log(found) / np.log(0.4) - 1) / 7)
    gaps = np.diff([0.0, *places, 1.0])
    assert gaps.max() <= 3 / len(found)


def test_groups_of_an_actor_go_on_where_the_one_before_ended() -> None:
    section = ExplorationSection(epsilon=0.4)
    whole = epsilons(section, "actor-3", 0, 6, 6)
    parts = epsilons(section, "actor-3", 0, 3, 6) + epsilons(section, "actor-3", 3, 3, 6)
    assert parts == whole
    assert len(set(whole)) == 6


def test_without_spread_all_are_the_same() -> None:
    assert set(epsilons(ExplorationSection(epsilon=0.25, epsilon_spread=0), "a", 0, 5, 5)) == {0.25}
