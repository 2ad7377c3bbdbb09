"""The writer while shards die, vanish and join: whose appends go elsewhere, and when."""

from __future__ import annotations

import asyncio

from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.faulty_shards import FaultyShard
from tests.unit.clients.writing import FAILOVER_S, PAYLOADS, writing
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle


def test_a_dead_shard_loses_its_items_to_the_others_after_a_while_and_not_before() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=20) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            for number in range(10):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(0.5)
            a.kill()
            pinned = writer.num_unacked
            assert 0 < pinned < 10
            new = asyncio.ensure_future(writer.append(PAYLOADS[10]))
            await asyncio.sleep(FAILOVER_S - 1.0)
            assert new.done(), "new items go to the live shard at once"
            assert writer.num_unacked == pinned
            assert writer.stats.num_moved == 0
            await asyncio.sleep(3.0)
            assert writer.num_unacked == 0
            assert writer.stats.num_moved == pinned
            assert sorted(await b.stored()) == list(range(11))

    run(main())


def test_a_shard_that_lost_its_items_is_dialled_anew() -> None:
    """Its answers on the old stream would be for items that are no longer its own."""

    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b)) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            await writer.append(PAYLOADS[0])
            await writer.append(PAYLOADS[1])
            assert await writer.flush(FAILOVER_S + 3.0) == 0
            await asyncio.sleep(1.0)
            assert (a.num_dials, b.num_dials) == (2, 1)
            a.silent = False
            await asyncio.sleep(1.0)
            await writer.append(PAYLOADS[2])
            await writer.append(PAYLOADS[3])
            assert await writer.flush(1.0) == 0
            assert a.stats.num_inserted == 2

    run(main())


def test_a_large_item_has_the_time_that_it_takes_on_a_slow_link() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        large = payload(envs=1000, width=800)
        assert 8e6 < len(large) < 10e6
        async with writing(ChangingDirectory(a, b)) as writer:
            await asyncio.sleep(0.1)
            a.silent = b.silent = True
            await writer.append(large)
            await asyncio.sleep(FAILOVER_S + 8.0)
            assert writer.stats.num_moved == 0
            await asyncio.sleep(5.0)
            assert writer.stats.num_moved == 1

    run(main())


def test_no_shard_at_the_start() -> None:
    async def main() -> None:
        directory = ChangingDirectory()
        async with writing(directory) as writer:
            await writer.append(PAYLOADS[0])
            assert await writer.flush(30.0) == 1
            shard = FaultyShard()
            directory.list(shard)
            assert await writer.flush(30.0) == 0
            assert await shard.stored() == [0]

    run(main())


def test_new_shards_get_their_share_and_vanished_ones_nothing_new() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        directory = ChangingDirectory(a)
        async with writing(directory) as writer:
            await writer.append(PAYLOADS[0])
            await asyncio.sleep(1.0)
            directory.list(a, b)
            await asyncio.sleep(1.0)
            for number in range(1, 21):
                await writer.append(PAYLOADS[number])
            assert await writer.flush(10.0) == 0
            assert b.stats.num_inserted == 10
            a.silent = True
            for number in range(21, 23):
                await writer.append(PAYLOADS[number])
            await settle()
            directory.list(b)
            for number in range(23, 30):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(1.0)
            assert writer.num_unacked == 1, "the vanished shard may still answer for what it has"
            a.silent = False
            assert await writer.flush(3.0) == 0
            assert a.stats.num_inserted == 12
            assert b.stats.num_inserted == 18
            await asyncio.sleep(1.0)
            dials = a.num_dials
            await asyncio.sleep(60.0)
            assert a.num_dials == dials, "left alone once nothing is due"
            assert a.clients[0].closed
            directory.list(a, b)
            await asyncio.sleep(1.0)
            for number in range(30, 34):
                await writer.append(PAYLOADS[number])
            assert await writer.flush(3.0) == 0
            assert a.stats.num_inserted == 14

    run(main())


def test_what_came_while_no_shard_was_listed_goes_to_one_that_is_listed_again() -> None:
    """The link lives on meanwhile, because something is still due on it."""

    async def main() -> None:
        shard = FaultyShard()
        directory = ChangingDirectory(shard)
        async with writing(directory) as writer:
            await asyncio.sleep(0.1)
            shard.silent = True
            await writer.append(PAYLOADS[0])
            await settle()
            directory.list()
            await writer.append(PAYLOADS[1])
            directory.list(shard)
            shard.silent = False
            assert await writer.flush(3.0) == 0
            assert await shard.stored() == [0, 1]
            assert shard.num_dials == 1

    run(main())


def test_a_vanished_shard_that_is_silent_loses_its_items() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        directory = ChangingDirectory(a, b)
        async with writing(directory) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            for number in range(2):
                await writer.append(PAYLOADS[number])
            a.kill()
            directory.list(b)
            assert await writer.flush(FAILOVER_S + 3.0) == 0
            assert sorted(await b.stored()) == [0, 1]

    run(main())
