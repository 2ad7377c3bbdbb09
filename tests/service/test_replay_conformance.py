"""One set of tests for both replay clients: over gRPC to a real server, and within the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.replay.shard import Shard
from shoal.clients.replay import Ack, Outcome, ReplayShardClient
from shoal.clients.replay_local import InProcessReplayClient
from shoal.config.tree import QueueTable, ReplaySection
from shoal.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ShoalError,
    UnavailableError,
)
from shoal.records import Life
from tests.service.replay_server import LIMITS, served, until
from tests.unit.replay.payloads import payload

LIFE = Life("actor", "run")
TABLE = QueueTable(max_items=4, insert_timeout_s=30.0, sample_timeout_s=30.0)
PAYLOADS = [payload(number) for number in range(6)]

Test = Callable[[ReplayShardClient, Shard], Awaitable[None]]
Check = Callable[[Test], None]


@asynccontextmanager
async def within_the_process() -> AsyncIterator[tuple[ReplayShardClient, Shard]]:
    shard = Shard(ReplaySection(tables={"train": TABLE}), LIMITS)
    client = InProcessReplayClient(shard)
    yield client, shard
    await client.close()


@asynccontextmanager
async def over_grpc(directory: Path) -> AsyncIterator[tuple[ReplayShardClient, Shard]]:
    async with served(directory, table=TABLE) as server:
        client = server.client()
        yield client, server.shard
        await client.close()


@pytest.fixture(params=["in-process", "grpc"])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """Runs a coroutine with a client and the shard behind it."""

    def run(test: Test) -> None:
        async def main() -> None:
            both = within_the_process() if request.param == "in-process" else over_grpc(tmp_path)
            async with asyncio.timeout(60), both as (client, shard):
                await test(client, shard)

        asyncio.run(main())

    return run


def test_append_then_sample(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        samples = await client.open_sample("train")
        for sequence in (3, 5):
            await appends.send(sequence, PAYLOADS[sequence])
        assert await appends.receive() == Ack(3, Outcome.STORED)
        assert await appends.receive() == Ack(5, Outcome.STORED)
        await samples.request(1)
        await samples.request(9)
        first, second = await samples.receive(), await samples.receive()
        items = first.items + second.items
        assert [(item.life, item.sequence, item.payload) for item in items] == [
            (LIFE, sequence, PAYLOADS[sequence]) for sequence in (3, 5)
        ]
        assert [item.key for item in items] == [1, 2]
        assert (first.num_items, first.num_bytes, first.priority_mass) == (1, len(PAYLOADS[5]), 1.0)
        assert (second.num_items, second.num_bytes, second.priority_mass) == (0, 0, 0.0)

    check(test)


def test_items_are_stored_whether_or_not_somebody_receives(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        for sequence in range(3):
            await appends.send(sequence, PAYLOADS[sequence])

        async def all_stored() -> bool:
            return (await client.stats())[0].num_items == 3

        await until(all_stored)
        assert [(await appends.receive()).sequence for _ in range(3)] == [0, 1, 2]

    check(test)


def test_every_outcome_comes_in_order(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        for sequence in range(4):
            await appends.send(sequence, PAYLOADS[sequence])
        await appends.send(2, PAYLOADS[2])
        await appends.send(4, b"\xff\xff\xff")
        await appends.send(5, PAYLOADS[5], 0.05)
        acks = [await appends.receive() for _ in range(7)]
        assert [ack.sequence for ack in acks] == [0, 1, 2, 3, 2, 4, 5]
        assert [ack.outcome for ack in acks] == [
            *[Outcome.STORED] * 4,
            Outcome.DUPLICATE,
            Outcome.REJECTED,
            Outcome.TIMED_OUT,
        ]
        assert "Trajectory" in acks[5].reason
        assert acks[0].reason == ""
        (stats,) = await client.stats()
        assert (stats.table, stats.kind, stats.max_items, stats.max_bytes) == ("train", "queue", 4, 1 << 30)
        assert (stats.num_items, stats.num_inserted, stats.num_sampled_out, stats.num_evicted) == (4, 4, 0, 0)
        assert (stats.num_duplicates, stats.num_rejected, stats.num_insert_timeouts) == (1, 1, 1)
        assert stats.num_bytes == sum(len(PAYLOADS[sequence]) for sequence in range(4))
        assert stats.insert_wait_s >= 0.04
        assert stats == shard.stats()[0]

    check(test)


def test_a_full_table_holds_the_append_until_a_sample(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        samples = await client.open_sample("train")
        for sequence in range(5):
            await appends.send(sequence, PAYLOADS[sequence])
        for _ in range(4):
            await appends.receive()
        fifth = asyncio.ensure_future(appends.receive())
        assert not (await asyncio.wait([fifth], timeout=0.1))[0]
        await samples.request(1)
        assert (await samples.receive()).items[0].sequence == 0
        assert await fifth == Ack(4, Outcome.STORED)

    check(test)


def test_a_sample_waits_for_an_insert_or_its_timeout(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        samples = await client.open_sample("train")
        await samples.request(1, 0.05)
        await samples.request(1, 30.0)
        assert (await samples.receive()).items == ()
        waiting = asyncio.ensure_future(samples.receive())
        appends = await client.open_append(LIFE, "train")
        await appends.send(0, PAYLOADS[0])
        assert [item.sequence for item in (await waiting).items] == [0]

    check(test)


def test_closing_a_stream_withdraws_its_waiting_insert(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        for sequence in range(5):
            await appends.send(sequence, PAYLOADS[sequence])
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
            await appends.send(5, PAYLOADS[5])
        again = await client.open_append(LIFE, "train")
        await again.send(4, PAYLOADS[4])
        samples = await client.open_sample("train")
        await samples.request(9)
        assert [item.sequence for item in (await samples.receive()).items] == [0, 1, 2, 3]
        assert await again.receive() == Ack(4, Outcome.STORED)
        assert shard.stats()[0].num_inserted == 5

    check(test)


def test_refused_appends(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        with pytest.raises(NotFoundError, match="no replay table 'nope' here: there are train"):
            await client.open_append(LIFE, "nope")
        with pytest.raises(InvalidArgumentError, match="actor_id has 0 characters"):
            await client.open_append(Life("", "run"), "train")
        with pytest.raises(InvalidArgumentError, match="run_id has 200 characters"):
            await client.open_append(Life("actor", "r" * 200), "train")

    check(test)


@pytest.mark.parametrize(
    ("table", "num_items", "error", "text"),
    [("nope", 1, NotFoundError, "no replay table 'nope'"), ("train", 0, InvalidArgumentError, "at least 1")],
)
def test_refused_samples(
    check: Check, table: str, num_items: int, error: type[ShoalError], text: str
) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        samples = await client.open_sample(table)
        await samples.request(num_items)
        with pytest.raises(error, match=text):
            await samples.receive()
        with pytest.raises(error, match=text):
            await samples.receive()

    check(test)


def test_priorities(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        with pytest.raises(FailedPreconditionError, match="no priorities"):
            await client.update_priorities("train", [1], [1.0])
        with pytest.raises(NotFoundError):
            await client.update_priorities("nope", [1], [1.0])
        with pytest.raises(InvalidArgumentError, match="2 keys with 1 priorities"):
            await client.update_priorities("train", [1, 2], [1.0])
        with pytest.raises(InvalidArgumentError, match="not a finite number"):
            await client.update_priorities("train", [1], [float("nan")])

    check(test)


def test_answers_given_before_the_end_are_received_after_it(check: Check) -> None:
    """Also when a send has failed in the meantime: an ack that is dropped is an item stored twice."""

    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        for sequence in range(4):
            await appends.send(sequence, PAYLOADS[sequence])

        async def all_stored() -> bool:
            return shard.num_items == 4

        await until(all_stored)
        shard.stop_inserts()

        async def cannot_send() -> bool:
            try:
                await appends.send(4, PAYLOADS[4])
            except UnavailableError:
                return True
            return False

        await until(cannot_send)
        assert [(await appends.receive()).sequence for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(UnavailableError):
            await appends.receive()

    check(test)


def test_a_draining_shard_ends_appends_first_and_samples_last(check: Check) -> None:
    async def test(client: ReplayShardClient, shard: Shard) -> None:
        appends = await client.open_append(LIFE, "train")
        samples = await client.open_sample("train")
        for sequence in range(5):
            await appends.send(sequence, PAYLOADS[sequence])
        for _ in range(4):
            await appends.receive()
        shard.stop_inserts()
        with pytest.raises(UnavailableError, match="draining"):
            await appends.receive()
        with pytest.raises(UnavailableError, match="draining"):
            await client.open_append(LIFE, "train")
        await samples.request(9)
        assert len((await samples.receive()).items) == 4
        await samples.request(9)
        shard.stop_samples()
        with pytest.raises(UnavailableError, match="draining"):
            await samples.receive()

    check(test)
