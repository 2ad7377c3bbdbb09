"""What has come into a table is told to each stream once, whatever is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.replay.arrivals import Arrivals
from services.replay.shard import Shard
from shoal.clients.replay_shard import MAX_EPISODES, Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tree import ReplaySection
from shoal.errors import NotFoundError
from shoal.records import FIRST, Episode, Trajectory
from shoal.wire import encode_trajectory
from tests.unit.replay.payloads import LIFE, trajectory

EPISODES = tuple(Episode(float(number), number) for number in range(1, 6))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        await test()

    asyncio.run(body())


def make_shard(table: dict[str, object], directory: Path | None = None) -> Shard:
    return Shard(ReplaySection.model_validate({"tables": {"train": table}}), LimitsSection(), directory)


async def insert(shard: Shard, sequence: int, *episodes: Episode, resets: int = 0) -> None:
    """Four steps of one environment, `resets` of them without a transition."""
    unroll = trajectory(sequence, rows=5, envs=1, first_step=4 * sequence)
    unroll.columns[FIRST][1 : 1 + resets] = True
    append = Append(sequence, (encode_trajectory(replace(unroll, episodes=episodes)),))
    assert (await shard.append(LIFE, "train", append)).outcome in (Outcome.STORED, Outcome.DUPLICATE)


@pytest.mark.parametrize("kind", ["transition", "sequence"])
def test_each_stream_hears_of_everything_since_its_first_request(kind: str) -> None:
    async def test() -> None:
        shard = make_shard({"kind": kind})
        early, late = shard.open_sample(), shard.open_sample()
        await insert(shard, 0, EPISODES[0])
        first = await early.sample("train", 0)
        assert (first.steps_inserted, first.episodes) == (0, ()), "what was there before"
        await insert(shard, 1, *EPISODES[1:3])
        await insert(shard, 2, resets=1)
        await insert(shard, 2, resets=1)
        second = await early.sample("train", 1)
        assert second.num_sampled == 1
        assert (second.steps_inserted, second.episodes) == (4 + 3, EPISODES[1:3])
        assert (await late.sample("train", 1)).steps_inserted == 0
        await insert(shard, 3, EPISODES[3])
        for stream in (early, late):
            told = await stream.sample("train", 1)
            assert (told.steps_inserted, told.episodes) == (4, EPISODES[3:4])
            again = await stream.sample("train", 1)
            assert (again.steps_inserted, again.episodes) == (0, ())

    run(test)


def test_what_comes_while_a_sample_waits_is_told_with_it() -> None:
    async def test() -> None:
        shard = make_shard({"kind": "transition", "min_items": 8})
        stream = shard.open_sample()
        waiting = asyncio.create_task(stream.sample("train", 4, 10.0))
        await asyncio.sleep(0)
        await insert(shard, 0, EPISODES[0])
        await insert(shard, 1, EPISODES[1])
        told = await waiting
        assert (told.num_sampled, told.steps_inserted, told.episodes) == (4, 8, EPISODES[:2])

    run(test)


def test_a_queue_tells_nothing_besides_its_items() -> None:
    async def test() -> None:
        shard = make_shard({"kind": "queue"})
        stream = shard.open_sample()
        await stream.sample("train", 0)
        await insert(shard, 0, EPISODES[0])
        told = await stream.sample("train", 1)
        assert (told.num_sampled, told.steps_inserted, told.episodes) == (1, 0, ())
        with pytest.raises(NotFoundError, match="no replay table 'other' here"):
            await stream.sample("other", 1)

    run(test)


def test_what_is_read_from_files_does_not_count(tmp_path: Path) -> None:
    async def test() -> None:
        shard = make_shard({"kind": "transition", "durability": "wal"}, tmp_path)
        await shard.open()
        await insert(shard, 0, EPISODES[0])
        await shard.close()
        again = make_shard({"kind": "transition", "durability": "wal"}, tmp_path)
        await again.open()
        stream = again.open_sample()
        told = await stream.sample("train", 1)
        assert (told.num_sampled, told.steps_inserted) == (1, 0)
        await insert(again, 1)
        assert (await stream.sample("train", 1)).steps_inserted == 4
        await again.close()

    run(test)


def test_of_many_episodes_the_newest_are_kept() -> None:
    arrivals = Arrivals()
    mark = arrivals.mark()
    first = np.zeros((3, 1), np.bool_)
    episodes = [Episode(float(number), 1) for number in range(2 * MAX_EPISODES)]
    for episode in episodes:
        arrivals.add([Trajectory({FIRST: first}, (episode,))])
    assert arrivals.since(mark) == (4 * MAX_EPISODES, tuple(episodes[MAX_EPISODES:]))
    assert arrivals.since(arrivals.mark()) == (0, ())
