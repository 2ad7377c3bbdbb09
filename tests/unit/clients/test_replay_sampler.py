"""The sampler against real shards in this process; connections break, fall silent, come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shoal.clients.replay_sampler import SILENT_AFTER_S, ReplaySampler
from shoal.clients.replay_shard import Append
from shoal.config.connections import RpcSection
from shoal.config.tables import QueueTable
from shoal.errors import FailedPreconditionError, NotFoundError, UnavailableError
from shoal.records import Item, Life
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.faulty_shards import FaultyShard
from tests.unit.clients.memory_shards import MemoryShard
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle

RPC = RpcSection(max_backoff_s=0.5)
PAYLOAD = payload()


@asynccontextmanager
async def sampling(
    directory: ChangingDirectory, *, prefetch_items: int = 2, table: str = "train"
) -> AsyncIterator[ReplaySampler]:
    sampler = ReplaySampler(directory, directory.connect, table, prefetch_items, RPC)
    sampler.start()
    try:
        yield sampler
    finally:
        await sampler.close()
        await settle()


async def fill(shard: FaultyShard, *sequences: int) -> None:
    life = Life(shard.address.target, "run")
    for sequence in sequences:
        await shard.shard.append(life, "train", Append(sequence, (PAYLOAD,), timeout_s=0.01))


async def take(sampler: ReplaySampler, number: int) -> list[Item]:
    return [await sampler.next() for _ in range(number)]


def test_items_come_in_order_with_a_few_taken_ahead() -> None:
    async def main() -> None:
        shard = FaultyShard()
        await fill(shard, *range(10))
        async with sampling(ChangingDirectory(shard), prefetch_items=3) as sampler:
            await asyncio.sleep(1.0)
            assert shard.stats.num_items == 7, "a consumer that is slow holds the shard back"
            assert [item.sequence for item in await take(sampler, 10)] == list(range(10))

    run(main())


def test_next_waits_for_whichever_shard_has_one() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with sampling(ChangingDirectory(a, b)) as sampler:
            waiting = asyncio.ensure_future(sampler.next())
            await asyncio.sleep(30.0)
            assert not waiting.done()
            await fill(b, 7)
            assert (await waiting).sequence == 7
            await fill(a, 8)
            assert (await sampler.next()).sequence == 8
            assert a.num_dials == b.num_dials == 1, "no item is an answer"

    run(main())


def test_every_shard_gets_its_share_of_a_fast_consumer() -> None:
    async def main() -> None:
        shards = [FaultyShard(name) for name in "abc"]
        for shard in shards:
            await fill(shard, *range(100))
        async with sampling(ChangingDirectory(*shards)) as sampler:
            counts = Counter(item.life.actor_id for item in await take(sampler, 90))
            assert min(counts.values()) >= 25, counts

    run(main())


def test_a_broken_shard_does_not_hold_up_the_others_and_is_dialled_for_ever() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with sampling(ChangingDirectory(a, b)) as sampler:
            await asyncio.sleep(0.1)
            a.kill()
            await fill(b, *range(50))
            items = await take(sampler, 50)
            assert {item.life.actor_id for item in items} == {"b"}
            await asyncio.sleep(3600.0)
            assert a.num_dials > 1000
            a.restart()
            await fill(a, *range(5))
            assert [item.sequence for item in await take(sampler, 5)] == list(range(5))

    run(main())


def test_items_that_were_here_before_a_break_are_still_handed_out() -> None:
    async def main() -> None:
        shard = FaultyShard()
        await fill(shard, 0, 1, 2, 3)
        async with sampling(ChangingDirectory(shard)) as sampler:
            await asyncio.sleep(0.1)
            shard.break_streams()
            await asyncio.sleep(10.0)
            assert shard.stats.num_items == 2, (
                "what waits here counts against the share after a reconnect, too"
            )
            assert [item.sequence for item in await take(sampler, 4)] == [0, 1, 2, 3]

    run(main())


def test_a_silent_shard_is_given_up_and_dialled_again() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with sampling(ChangingDirectory(shard)) as sampler:
            await asyncio.sleep(0.1)
            shard.silent = True
            await asyncio.sleep(SILENT_AFTER_S - 1.0)
            assert shard.num_dials == 1
            await asyncio.sleep(SILENT_AFTER_S / 2)
            assert shard.num_dials >= 2
            shard.silent = False
            await fill(shard, 0)
            assert (await sampler.next()).sequence == 0

    run(main())


def test_a_slow_consumer_is_not_taken_for_a_silent_shard() -> None:
    async def main() -> None:
        shard = FaultyShard()
        await fill(shard, *range(10))
        async with sampling(ChangingDirectory(shard)) as sampler:
            await asyncio.sleep(3600.0)
            assert shard.num_dials == 1
            assert len(await take(sampler, 10)) == 10

    run(main())


def test_shards_come_and_go() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        directory = ChangingDirectory(a)
        async with sampling(directory) as sampler:
            await asyncio.sleep(0.1)
            directory.list(b)
            await fill(a, 0)
            await fill(b, 1)
            both = {item.life.actor_id for item in await take(sampler, 2)}
            assert both == {"a", "b"}, "a shard that drains is sampled until it ends the stream"
            a.break_streams()
            await asyncio.sleep(60.0)
            assert a.num_dials == 1
            assert a.clients[0].closed

    run(main())


def test_a_cancelled_next_loses_nothing() -> None:
    async def main() -> None:
        shard = FaultyShard("a", QueueTable(max_items=100))
        async with sampling(ChangingDirectory(shard)) as sampler:
            first, second = (asyncio.ensure_future(sampler.next()) for _ in range(2))
            await asyncio.sleep(0.1)
            await fill(shard, 0)
            first.cancel()
            assert (await second).sequence == 0
            assert first.cancelled()

    run(main())


def test_refusals_surface_from_next() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with sampling(ChangingDirectory(shard), table="nope") as sampler:
            waiting = [asyncio.ensure_future(sampler.next()) for _ in range(2)]
            for task in waiting:
                with pytest.raises(NotFoundError, match="no replay table 'nope'"):
                    await task
            with pytest.raises(NotFoundError):
                await sampler.next()

    run(main())


def test_close_refuses_those_who_wait_and_lets_go_of_the_shards() -> None:
    async def main() -> None:
        before = len(asyncio.all_tasks())
        async with sampling(ChangingDirectory(FaultyShard("a"), FaultyShard("b"))) as sampler:
            waiting = asyncio.ensure_future(sampler.next())
            await asyncio.sleep(1.0)
            await sampler.close()
            with pytest.raises(UnavailableError, match="closed"):
                await waiting
        await asyncio.sleep(1.0)
        assert len(asyncio.all_tasks()) == before

    run(main())


def test_nobody_waits_for_ever_who_does_not_say_so() -> None:
    async def main() -> None:
        async with sampling(ChangingDirectory(FaultyShard())) as sampler:
            with pytest.raises(UnavailableError, match="no item within 60"):
                await sampler.next()

    run(main())


def test_a_table_of_transitions_is_refused_in_words() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0}, transitions=True)
        async with sampling(ChangingDirectory(shard)) as sampler:
            with pytest.raises(FailedPreconditionError, match="'train' holds transitions"):
                await sampler.next()

    run(main())
