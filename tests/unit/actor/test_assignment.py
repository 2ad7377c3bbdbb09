"""Groups spread evenly over replicas, without talking to each other."""

from __future__ import annotations

from collections import Counter

import pytest

from services.actor.assignment import Seat, actor_number


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_groups", [1, 2, 3])
@pytest.mark.parametrize("num_actors", [1, 3, 8, 32])
def test_numbered_actors_are_balanced(num_replicas: int, num_groups: int, num_actors: int) -> None:
    replicas = list(range(num_replicas))
    load = Counter(
        Seat(f"actor-{a}", g, num_groups).replica(replicas)
        for a in range(num_actors)
        for g in range(num_groups)
    )
    counts = [load[replica] for replica in replicas]
    assert max(counts) - min(counts) <= 1


def test_actors_with_random_names_are_roughly_balanced() -> None:
    load = Counter(Seat(f"pod-{a * 7919:x}z", g, 2).replica(range(4)) for a in range(400) for g in range(2))
    assert all(150 <= load[replica] <= 250 for replica in range(4))


def test_skipping_visits_every_replica() -> None:
    seat = Seat("actor-1", 0, 2)
    assert {seat.replica("abc", skip) for skip in range(3)} == set("abc")
    assert seat.replica("abc", 3) == seat.replica("abc")


def test_numbers_are_stable() -> None:
    assert actor_number("actor-12") == 12
    assert actor_number("7") == 7
    assert actor_number("gpu2-worker") == actor_number("gpu2-worker") != actor_number("gpu3-worker")
