"""One set of tests for both replay clients, all kinds of tables and all durabilities.

Over gRPC to a real server, and within the process. What only a queue does is in the second half.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.replay.shard import Shard
from shoal.clients.replay_shard import Ack, Append, Outcome, ReplayShardClient
from shoal.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from shoal.records import ACTION, OBSERVATION, ArraySpec, Episode, Life
from shoal.wire import encode_trajectory
from tests.service.replay_items import DECLARED, NUM_ACTIONS, STEPS, encoded, trajectory
from tests.service.replay_kinds import DURABILITIES, KINDS, LIFE, TRANSPORTS, Check, Kind, stored
from tests.service.replay_server import append_of, until


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(KINDS))
def check(request: pytest.FixtureRequest, transport: str, durability: str, tmp_path: Path) -> Check:
    return Check(transport, tmp_path, Kind(request.param, durability))


@pytest.fixture
def check_queue(transport: str, durability: str, tmp_path: Path) -> Check:
    return Check(transport, tmp_path, Kind("queue", durability))


@pytest.fixture(params=["sequence", "transition"])
def check_sampled(request: pytest.FixtureRequest, transport: str, durability: str, tmp_path: Path) -> Check:
    return Check(transport, tmp_path, Kind(request.param, durability))


def test_append_then_sample(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        appends = await client.open_append(LIFE, "train", DECLARED)
        samples = await client.open_sample("train")
        await samples.request(0)
        empty = await samples.receive()
        assert (empty.num_sampled, empty.num_items, empty.priority_mass) == (0, 0, 0.0)
        for append in (kind.append(3, 1, 2), kind.append(5, 3)):
            await appends.send(append)
        assert await appends.receive() == Ack(3, Outcome.STORED)
        assert await appends.receive() == Ack(5, Outcome.STORED)
        num_items = kind.items(3)
        await samples.request(num_items)
        sampled = await samples.receive()
        assert sampled.num_sampled == num_items
        assert (sampled.num_items, sampled.priority_mass) == (num_items, num_items)
        assert sampled.num_bytes > 0
        assert set(kind.keys(sampled)) <= set(range(1, num_items + 1))
        # Stratified over equal masses: each one exactly once.
        assert Counter(kind.numbers(sampled)) == Counter(
            {1: kind.items(1), 2: kind.items(1), 3: kind.items(1)}
        )
        for item in sampled.items:
            assert (item.life, item.mass, len(item.payloads)) == (LIFE, 1.0, 1)
            assert item.sequence == (5 if item.key == 3 else 3)
            assert item.payloads[0] == encoded(item.key)
        if sampled.transitions is not None:
            assert list(sampled.transitions.masses) == [1.0] * num_items
            assert sampled.transitions.columns[OBSERVATION].dtype == np.float32

    check(test)


def test_every_outcome_comes_in_order_and_the_ledger_adds_up(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        stream = await client.open_append(LIFE, "train", DECLARED)
        broken = append_of(2, encoded(1), b"\xff\xff\xff")
        for append in (
            kind.append(0, 1),
            kind.append(1, 2, 3),
            kind.append(1, 2, 3),
            broken,
            kind.append(2, 4),
        ):
            await stream.send(append)
        acks = [await stream.receive() for _ in range(5)]
        assert [ack.sequence for ack in acks] == [0, 1, 1, 2, 2]
        assert [ack.outcome for ack in acks] == [
            Outcome.STORED,
            Outcome.STORED,
            Outcome.DUPLICATE,
            Outcome.REJECTED,
            Outcome.STORED,
        ]
        assert "Trajectory" in acks[3].reason
        assert acks[0].reason == ""
        (stats,) = await client.stats()
        assert stats == shard.stats()[0]
        assert (stats.table, stats.kind, stats.durability) == ("train", kind.kind, kind.durability)
        assert stats.degraded == ""
        assert stats.num_items == kind.items(4)
        # A refused append counts its trajectories, whatever they would have become.
        assert (stats.num_rejected, stats.num_duplicates) == (2, 1)
        assert stats.num_inserted == stats.num_items + stats.num_rejected
        assert (stats.disk_bytes > 0) == (kind.durability != "memory")

    check(test)


def test_a_sample_waits_for_an_insert_or_its_timeout(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        samples = await client.open_sample("train")
        await samples.request(1, 0.05)
        await samples.request(1, 30.0)
        assert (await samples.receive()).num_sampled == 0
        waiting = asyncio.ensure_future(samples.receive())
        await stored(client, kind.append(0, 7))
        assert kind.numbers(await waiting) == [7]
        (stats,) = await client.stats()
        assert (stats.num_sample_timeouts, stats.num_samples) == (1, 1)
        # The first does not wait if its time was over before its turn came.
        assert 1 <= stats.num_sample_waits <= 2
        assert stats.sample_wait_s > 0

    check(test)


def test_refused_streams(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        with pytest.raises(NotFoundError, match="no replay table 'nope' here: there are train"):
            await client.open_append(LIFE, "nope")
        with pytest.raises(InvalidArgumentError, match="actor_id has 0 characters"):
            await client.open_append(Life("", "run"), "train")
        with pytest.raises(InvalidArgumentError, match="run_id has 200 characters"):
            await client.open_append(Life("actor", "r" * 200), "train")
        samples = await client.open_sample("nope")
        await samples.request(1)
        for _ in range(2):
            with pytest.raises(NotFoundError, match="no replay table 'nope'"):
                await samples.receive()

    check(test)


def test_columns_that_are_not_the_tables_are_refused_with_both_signatures(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        stream = await client.open_append(LIFE, "train", DECLARED)
        await stream.send(append_of(0, encoded(1, width=5)))
        refused = await stream.receive()
        assert refused.outcome is Outcome.REJECTED
        assert "observation float32[5]" in refused.reason
        assert "observation float32[3]" in refused.reason
        await stream.send(kind.append(1, 1))
        assert (await stream.receive()).outcome is Outcome.STORED
        other = (ArraySpec(ACTION, "int64", (), NUM_ACTIONS + 1),)
        with pytest.raises(FailedPreconditionError, match="4 categories") as caught:
            await client.open_append(Life("other", "run"), "train", other)
        assert "5 categories" in str(caught.value)
        assert shard.stats()[0].num_rejected == 1

    check(test)


def test_tables_without_priorities_refuse_new_ones(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        await stored(client, kind.append(0, 1))
        keys = np.array([1, 2], np.uint64)
        with pytest.raises(FailedPreconditionError, match="prior"):
            await client.update_priorities("train", keys, np.ones(2))
        with pytest.raises(NotFoundError):
            await client.update_priorities("nope", keys, np.ones(2))
        with pytest.raises(InvalidArgumentError, match="2 keys with 1 priorities"):
            await client.update_priorities("train", keys, np.ones(1))
        with pytest.raises(InvalidArgumentError, match="not a finite number"):
            await client.update_priorities("train", keys, np.array([1.0, np.nan]))

    check(test)


def test_a_draining_shard_refuses_appends_and_then_samples(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        appends = await client.open_append(LIFE, "train")
        samples = await client.open_sample("train")
        await appends.send(kind.append(0, 1))
        await appends.receive()
        shard.stop_inserts()
        await appends.send(kind.append(1, 2))
        with pytest.raises(UnavailableError, match="draining"):
            await appends.receive()
        with pytest.raises(UnavailableError, match="draining"):
            await client.open_append(LIFE, "train")
        await samples.request(1)
        assert kind.numbers(await samples.receive()) == [1]
        shard.stop_samples()
        await samples.request(1)
        with pytest.raises(UnavailableError, match="draining"):
            await samples.receive()

    check(test)


def test_a_shard_that_starts_again_goes_on_with_what_its_files_hold(check: Check) -> None:
    """Items, keys, repeats, signature and counters; nothing of it without files."""

    async def before(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        await stored(client, kind.append(0, 1, 2), kind.append(1, 3))

    async def after(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        kept = kind.durability != "memory"
        (stats,) = await client.stats()
        assert stats.num_items == stats.num_inserted == (kind.items(3) if kept else 0)
        stream = await client.open_append(LIFE, "train")
        await stream.send(kind.append(1, 3))
        assert (await stream.receive()).outcome is (Outcome.DUPLICATE if kept else Outcome.STORED)
        await stream.send(append_of(2, encoded(1, width=5)))
        assert (await stream.receive()).outcome is Outcome.REJECTED
        await stream.send(kind.append(2, 4))
        assert (await stream.receive()).outcome is Outcome.STORED
        num_items = kind.items(4 if kept else 2)
        samples = await client.open_sample("train")
        await samples.request(num_items)
        sampled = await samples.receive()
        assert sorted(kind.keys(sampled)) == list(range(1, num_items + 1))
        assert set(kind.numbers(sampled)) == ({1, 2, 3, 4} if kept else {3, 4})

    check(before, after)


def test_priorities_from_the_client_and_new_ones(check_sampled: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        stream = await client.open_append(LIFE, "train")
        # Of two trajectories only the second one's items can be sampled: the others have priority 0.
        priorities = np.repeat(np.array([0.0, 3.0], np.float32), kind.items(1))
        payloads = (encoded(1), encoded(2))
        await stream.send(Append(0, payloads, priorities))
        assert await stream.receive() == Ack(0, Outcome.STORED)
        samples = await client.open_sample("train")
        await samples.request(50)
        sampled = await samples.receive()
        assert set(kind.numbers(sampled)) == {2}
        assert sampled.num_sampled == 50
        assert sampled.priority_mass == pytest.approx(9.0 * kind.items(1))
        first, second = np.arange(1, kind.items(1) + 1), np.arange(kind.items(1) + 1, kind.items(2) + 1)
        keys = np.concatenate([first, second, [1000]]).astype(np.uint64)
        new = np.array([1.0] * kind.items(1) + [0.0] * kind.items(1) + [5.0])
        done = await client.update_priorities("train", keys, new)
        assert (done.num_updated, done.num_gone) == (kind.items(2), 1)
        await samples.request(50)
        assert set(kind.numbers(await samples.receive())) == {1}
        (stats,) = await client.stats()
        assert (stats.num_priorities_updated, stats.num_priorities_gone) == (kind.items(2), 1)
        assert stats.num_samples == 100
        await stream.send(Append(1, payloads, np.ones(7, np.float32)))
        assert (await stream.receive()).outcome is Outcome.REJECTED
        await stream.send(Append(2, payloads, np.full(kind.items(2), np.nan, np.float32)))
        assert (await stream.receive()).outcome is Outcome.REJECTED

    check_sampled(test, alpha=2.0)


def test_a_ratio_of_samples_to_inserts_makes_either_side_wait(check_sampled: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        stream = await client.open_append(LIFE, "train")
        outcomes = []
        for sequence in range(4):
            # The first may go; it may take its time on a busy disk.
            await stream.send(kind.append(sequence, sequence, timeout_s=0.2 if sequence else 30.0))
            outcomes.append((await stream.receive()).outcome)
        assert outcomes[0] is Outcome.STORED
        assert outcomes[-1] is Outcome.TIMED_OUT
        samples = await client.open_sample("train")
        num_sampled = 0
        for _ in range(20):
            await samples.request(1, 0.05)
            num_sampled += (await samples.receive()).num_sampled
        assert 0 < num_sampled < 20
        await stream.send(kind.append(9, 9))
        assert (await stream.receive()).outcome is Outcome.STORED
        (stats,) = await client.stats()
        # One that is stored, but not yet safe on a busy disk, is pending.
        late = outcomes.count(Outcome.TIMED_OUT) + outcomes.count(Outcome.PENDING)
        assert stats.num_insert_timeouts == late
        assert stats.num_sample_timeouts > 0

    check_sampled(test, samples_per_insert=1.0, ratio_tolerance=2.0)


def test_an_answer_tells_what_has_come_since_the_last_one(check_sampled: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        await stored(client, kind.append(0, 0))
        samples = await client.open_sample("train")
        episodes = (Episode(-1.5, 7, 4), Episode(2.0, 3))
        told = []
        for number in range(1, 4):
            await samples.request(1)
            sampled = await samples.receive()
            told.append((sampled.num_sampled, sampled.steps_inserted, sampled.episodes))
            unroll = replace(trajectory(number), episodes=episodes[number - 1 :])
            await stored(client, Append(number, (encode_trajectory(unroll),)))
        assert told == [(1, 0, ()), (1, STEPS, episodes), (1, STEPS, episodes[1:])]

    check_sampled(test)


def test_a_full_table_drops_its_oldest(check_sampled: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        await stored(client, *(kind.append(number, number) for number in range(5)))
        samples = await client.open_sample("train")
        await samples.request(kind.items(2))
        sampled = await samples.receive()
        assert Counter(kind.numbers(sampled)) == Counter({3: kind.items(1), 4: kind.items(1)})
        (stats,) = await client.stats()
        assert (stats.num_items, stats.num_evicted) == (kind.items(2), kind.items(3))

    check_sampled(test, max_items=check_sampled.kind.items(2))


def test_a_full_queue_holds_the_append_until_a_sample(check_queue: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        appends = await client.open_append(LIFE, "train")
        samples = await client.open_sample("train")
        for sequence in range(5):
            await appends.send(kind.append(sequence, sequence))
        for _ in range(4):
            await appends.receive()
        fifth = asyncio.ensure_future(appends.receive())
        assert not (await asyncio.wait([fifth], timeout=0.1))[0]
        await samples.request(1)
        assert kind.numbers(await samples.receive()) == [0]
        assert await fifth == Ack(4, Outcome.STORED)
        await appends.send(kind.append(9, 9, timeout_s=0.05))
        assert await appends.receive() == Ack(9, Outcome.TIMED_OUT)

    check_queue(test, max_items=4)


def test_closing_a_stream_withdraws_its_waiting_insert(check_queue: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        appends = await client.open_append(LIFE, "train")
        for sequence in range(5):
            await appends.send(kind.append(sequence, sequence))
        for _ in range(4):
            await appends.receive()
        waiting = asyncio.ensure_future(appends.receive())
        await asyncio.wait([waiting], timeout=0.1)
        await appends.close()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await appends.receive()
        with pytest.raises(UnavailableError):
            await appends.send(kind.append(5, 5))
        again = await client.open_append(LIFE, "train")
        await again.send(kind.append(4, 4))
        samples = await client.open_sample("train")
        await samples.request(9)
        assert kind.numbers(await samples.receive()) == [0, 1, 2, 3]
        assert await again.receive() == Ack(4, Outcome.STORED)
        assert shard.stats()[0].num_inserted == 5

    check_queue(test, max_items=4)


def test_a_repeat_of_what_was_sampled_out_is_known_after_a_restart(check_queue: Check) -> None:
    """With snapshots no file holds such an item: its life is remembered in the state alone."""

    async def before(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        await stored(client, kind.append(0, 1))
        samples = await client.open_sample("train")
        await samples.request(1)
        assert kind.numbers(await samples.receive()) == [1]

    async def after(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        stream = await client.open_append(LIFE, "train")
        await stream.send(kind.append(0, 1))
        assert await stream.receive() == Ack(0, Outcome.DUPLICATE)
        assert shard.stats()[0].num_items == 0

    check_queue(before, after, snapshot_every_s=80_000)


def test_answers_given_before_the_end_are_received_after_it(check_queue: Check) -> None:
    """Also when a send has failed in the meantime: an ack that is dropped is an item stored twice."""

    async def test(client: ReplayShardClient, shard: Shard, kind: Kind) -> None:
        appends = await client.open_append(LIFE, "train")
        for sequence in range(4):
            await appends.send(kind.append(sequence, sequence))

        async def all_stored() -> bool:
            return shard.stats()[0].num_items == 4

        await until(all_stored)
        shard.stop_inserts()

        async def cannot_send() -> bool:
            try:
                await appends.send(kind.append(4, 4))
            except UnavailableError:
                return True
            return False

        await until(cannot_send)
        assert [(await appends.receive()).sequence for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(UnavailableError):
            await appends.receive()

    check_queue(test)
