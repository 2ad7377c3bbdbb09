"""Which versions a group asks for: a synchronous one for newer ones than it handed over, others for any."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.actor.harness import Harness, T, breaking_at, run


def test_each_unroll_asks_for_a_newer_version_than_the_oldest_of_the_one_before() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(4)
        await harness.stop()
        asked = harness.replicas.backends["a"].min_versions
        oldest = [int(t.columns["policy_version"][0, 0]) for t in harness.sink.trajectories]
        # The version of the twin counts its replies: unrolls hold several. Only the first step of each asks:
        # where that has waited for as long as it may, the others must not wait as long again.
        expected = [asks for version in [-1, *oldest] for asks in (version + 1, *[0] * (T - 1))]
        assert asked == expected[: len(asked)]
        assert len(asked) > 3 * T

    run(test, synchronous=True)


def test_nothing_newer_is_asked_for_after_an_unroll_that_was_dropped() -> None:
    """Nobody trains on it: what it waited for might never come."""

    async def test(harness: Harness) -> None:
        await harness.sink.until(2)
        await harness.stop()
        asked = harness.replicas.backends["a"].min_versions
        # Three steps of a first unroll break, then there is a whole one of versions 3 to 7.
        assert asked[: 3 + T] == [0] * (3 + T)
        assert harness.sink.trajectories[0].columns["policy_version"][0, 0] == 3
        # Then three steps (the third breaks) and a whole unroll: both begin with a newer version than 3.
        assert asked[3 + T : 3 + T + 3 + T] == [4, 0, 0, 4, *[0] * (T - 1)]
        assert harness.sink.trajectories[1].columns["policy_version"][0, 0] == T + 5

    run(test, synchronous=True, prepare=breaking_at({2, T + 4}))


@pytest.mark.parametrize(("synchronous", "evaluate"), [(False, False), (True, True)])
def test_others_take_any_version(synchronous: bool, evaluate: bool) -> None:
    async def test(harness: Harness) -> None:
        backend = harness.replicas.backends["a"]
        while len(backend.min_versions) < 4 * T:
            await asyncio.sleep(0)
        await harness.stop()
        assert set(backend.min_versions) == {0}

    run(test, synchronous=synchronous, evaluate=evaluate)
