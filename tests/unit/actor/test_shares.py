"""How the unrolls of a synchronous actor are divided among learners."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.actor.shares import DividedSink, slots_by_rank
from shoal.config.ranks import env_shares
from shoal.errors import UnavailableError
from tests.unit.actor.harness import Collected, E, Harness, T, run


def test_a_group_is_cut_where_the_shares_are() -> None:
    """Two agents of a policy in each environment; 2 learners with 4 and 5 of the actor's 9."""
    shares = env_shares(9, 2)
    assert slots_by_rank(shares, range(3), 6) == {0: slice(0, 6)}
    assert slots_by_rank(shares, range(3, 6), 6) == {0: slice(0, 2), 1: slice(2, 6)}
    assert slots_by_rank(shares, range(6, 9), 6) == {1: slice(0, 6)}


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.data())
def test_every_slot_goes_to_one_learner(
    per_group: int, num_groups: int, num_agents: int, data: st.DataObject
) -> None:
    num_envs = per_group * num_groups
    num_learners = data.draw(st.integers(1, num_envs))
    shares = env_shares(num_envs, num_learners)
    given = [0] * num_learners
    for index in range(num_groups):
        envs = range(index * per_group, (index + 1) * per_group)
        slots = slots_by_rank(shares, envs, per_group * num_agents)
        covered = [slot for share in slots.values() for slot in range(share.start, share.stop)]
        assert covered == list(range(per_group * num_agents))
        for rank, share in slots.items():
            given[rank] += share.stop - share.start
    assert given == [num_agents * len(envs) for envs in shares]
    assert min(given) > 0


def test_a_group_hands_every_learner_its_part_of_each_unroll() -> None:
    async def test(harness: Harness) -> None:
        whole = harness.sink
        await whole.until(2)
        await harness.stop()
        first, second = whole.trajectories[:2]
        assert whole.appends[0] == (2, None)
        assert (first.num_envs, second.num_envs) == (1, E - 1)
        assert first.unroll_length == second.unroll_length == T
        # What an environment shows first is its seed.
        shown = [part.columns["observation"][0, :, 0].tolist() for part in (first, second)]
        assert shown == [[70.0], [71.0, 72.0]]

    run(test, synchronous=True, shares=(slice(0, 1), slice(1, E)))


def test_parts_go_to_the_sinks_of_their_learners_and_do_not_wait_for_each_other() -> None:
    class Sink:
        def __init__(self) -> None:
            self.taken: list[bytes] = []
            self.room = asyncio.Event()

        async def append(
            self,
            payloads: tuple[bytes, ...],
            priorities: np.ndarray | None,
            *,
            stream: int | None,
            timeout_s: float | None,
        ) -> None:
            await self.room.wait()
            self.taken.extend(payloads)

    async def body() -> None:
        full, empty = Sink(), Sink()
        empty.room.set()
        appending = asyncio.create_task(
            DividedSink([full, empty]).append([b"first", b"second"], None, stream=None, timeout_s=None)
        )
        while not empty.taken:
            await asyncio.sleep(0)
        assert not appending.done()
        full.room.set()
        await appending
        assert (full.taken, empty.taken) == ([b"first"], [b"second"])

    asyncio.run(asyncio.wait_for(body(), 20.0))


def test_the_refusal_of_one_sink_is_raised_as_it_is() -> None:
    class Refusing(Collected):
        async def append(self, *_: object, **__: object) -> None:
            raise UnavailableError("closed")

    async def body() -> None:
        sink = DividedSink([Refusing(), Refusing()])
        with pytest.raises(UnavailableError, match="closed"):
            await sink.append([b"a", b"b"], None, stream=None, timeout_s=None)

    asyncio.run(body())
