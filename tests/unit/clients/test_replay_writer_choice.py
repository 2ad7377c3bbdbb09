"""Which shard gets which append: turns, load, room, and where streams begin."""

from __future__ import annotations

import asyncio

from shoal.clients.replay_shard import Append
from shoal.config.tables import QueueTable
from shoal.records import Life
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.faulty_shards import FaultyShard
from tests.unit.clients.writing import FAILOVER_S, PAYLOADS, writing
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle


def test_shards_without_anything_under_way_take_turns() -> None:
    async def main() -> None:
        shards = [FaultyShard(name) for name in "abc"]
        async with writing(ChangingDirectory(*shards)) as writer:
            await asyncio.sleep(0.1)
            for number in range(30):
                await writer.append(PAYLOADS[number])
                assert await writer.flush(1.0) == 0
            assert [shard.stats.num_inserted for shard in shards] == [10, 10, 10]

    run(main())


def test_the_shard_with_the_fewest_unacked_bytes_gets_the_next_item() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=20) as writer:
            await asyncio.sleep(0.1)
            a.silent = b.silent = True
            await writer.append(payload(width=1000))
            for number in range(10):
                await writer.append(PAYLOADS[number])
            await settle()
            assert sorted((a.stats.num_inserted, b.stats.num_inserted)) == [1, 10]

    run(main())


def test_a_silent_shard_gets_no_new_items_while_another_answers() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=4, failover_after_s=60.0) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            await writer.append(PAYLOADS[0])
            await writer.append(PAYLOADS[1])
            await asyncio.sleep(2.0)
            for number in range(2, 50):
                await writer.append(PAYLOADS[number])
            await settle()
            assert writer.num_unacked == 1
            assert b.stats.num_inserted == 49

    run(main())


def test_a_full_shard_is_asked_again_or_left_for_one_with_room() -> None:
    async def main() -> None:
        a = FaultyShard("a", QueueTable(max_items=1))
        directory = ChangingDirectory(a)
        async with writing(directory, max_items=3) as writer:
            for number in range(3):
                await writer.append(PAYLOADS[number])
            assert await writer.flush(20.0) == 2
            assert writer.stats.num_timed_out > 0
            assert writer.stats.num_moved == 0, "full is not silent"
            b = FaultyShard("b", QueueTable(max_items=1))
            directory.list(a, b)
            assert await writer.flush(20.0) == 1
            assert sorted(await a.stored() + await b.stored()) == [0, 1]
            assert await writer.flush(20.0) == 0
            assert sorted(await a.stored() + await b.stored()) == [2]

    run(main())


def test_an_item_that_timed_out_goes_to_a_shard_with_room_although_that_one_is_busier() -> None:
    async def main() -> None:
        a, b = FaultyShard("a", QueueTable(max_items=1)), FaultyShard("b")
        async with writing(ChangingDirectory(a, b)) as writer:
            await asyncio.sleep(0.1)
            await a.shard.append(Life("another", "run"), "train", Append(0, (PAYLOADS[0],)))
            for number in range(2):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(FAILOVER_S / 2 - 0.2)
            assert writer.num_unacked == 1, "a has no room"
            b.silent = True
            await writer.append(PAYLOADS[2])
            await asyncio.sleep(0.3)
            assert writer.stats.num_timed_out == 1
            b.silent = False
            assert await writer.flush(1.0) == 0
            assert sorted(await b.stored()) == [0, 1, 2]

    run(main())


def test_a_stream_stays_with_its_shard_and_several_are_spread() -> None:
    async def main() -> None:
        shards = [FaultyShard(name) for name in "abc"]
        async with writing(ChangingDirectory(*shards)) as writer:
            await asyncio.sleep(0.1)
            for number in range(30):
                await writer.append(PAYLOADS[number], stream=number % 6)
                if number % 4 == 0:
                    await writer.flush(1.0)
            assert await writer.flush(1.0) == 0
            stored = [await shard.stored() for shard in shards]
            streams = [{sequence % 6 for sequence in sequences} for sequences in stored]
            assert sum(map(len, streams)) == 6, "no stream is on two shards"
            assert all(streams), "no shard is left out"

    run(main())


def test_different_lives_begin_with_different_shards() -> None:
    async def main() -> None:
        shards = [FaultyShard(name) for name in "abc"]
        for number in range(30):
            life = Life(f"actor-{number}", "run")
            async with writing(ChangingDirectory(*shards), life=life) as writer:
                await asyncio.sleep(0.1)
                await writer.append(PAYLOADS[0], stream=0)
                assert await writer.flush(1.0) == 0
        counts = [shard.stats.num_inserted for shard in shards]
        assert sum(counts) == 30
        assert min(counts) >= 4, counts

    run(main())
