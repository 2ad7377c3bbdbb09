"""The writer as its caller sees it: the window, what appends carry, rejections, refusals, the end."""

from __future__ import annotations

import asyncio
import traceback

import numpy as np
import pytest

import shoal.clients.replay_writer
from shoal.config.tables import SequenceTable
from shoal.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from shoal.records import ArraySpec, Life
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.faulty_shards import FaultyShard
from tests.unit.clients.writing import PAYLOADS, writing
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle


def test_items_arrive_in_order_and_are_acked() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard)) as writer:
            for number in range(10):
                await writer.append(PAYLOADS[number])
            assert await writer.flush(10.0) == 0
            assert await shard.stored() == list(range(10))
            stats = writer.stats
            assert (stats.num_acked, stats.num_resent, stats.num_rejected) == (10, 0, 0)
            assert writer.num_unacked == 0

    run(main())


@pytest.mark.parametrize(("max_items", "max_bytes"), [(3, 64 << 20), (1000, 1 << 16)])
def test_append_waits_in_turn_while_the_window_is_full(max_items: int, max_bytes: int) -> None:
    async def main() -> None:
        shard = FaultyShard()
        big = payload(width=1000)
        assert 1 < (1 << 16) // len(big) < 4
        fitting = min(max_items, max_bytes // len(big))
        async with writing(ChangingDirectory(shard), max_items=max_items, max_bytes=max_bytes) as writer:
            shard.silent = True
            appends = [asyncio.ensure_future(writer.append(big)) for _ in range(6)]
            await asyncio.sleep(2.0)
            assert [task.done() for task in appends] == [True] * fitting + [False] * (6 - fitting)
            assert writer.num_unacked == fitting
            shard.silent = False
            await asyncio.gather(*appends)
            assert await writer.flush(10.0) == 0
            assert await shard.stored() == list(range(6))

    run(main())


def test_an_item_larger_than_the_window_goes_alone() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard), max_bytes=1 << 16) as writer:
            await writer.append(payload(rows=3000))
            waiting = asyncio.ensure_future(writer.append(PAYLOADS[0]))
            await waiting
            assert await writer.flush(10.0) == 0
            assert await shard.stored() == [0, 1]

    run(main())


def test_a_cancelled_append_lets_the_next_one_in() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard), max_items=1) as writer:
            shard.silent = True
            await writer.append(PAYLOADS[0])
            first, second = (asyncio.ensure_future(writer.append(PAYLOADS[n])) for n in (1, 2))
            await settle()
            first.cancel()
            await settle()
            shard.silent = False
            await second
            assert await writer.flush(10.0) == 0
            assert writer.stats.num_acked == 2

    run(main())


def test_the_oldest_unacked_item_never_falls_out_of_the_shards_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shoal.clients.replay_writer, "SEQUENCE_WINDOW", 10)

    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=100, failover_after_s=600.0) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            appends = [asyncio.ensure_future(writer.append(item, timeout_s=None)) for item in PAYLOADS[:50]]
            await asyncio.sleep(60.0)
            assert sum(task.done() for task in appends) <= 11
            a.silent = False
            await asyncio.gather(*appends)
            assert await writer.flush(10.0) == 0
            assert sorted(await a.stored() + await b.stored()) == list(range(50))

    run(main())


def test_nobody_waits_for_ever_who_does_not_say_so() -> None:
    async def main() -> None:
        shard = FaultyShard()
        shard.silent = True
        async with writing(ChangingDirectory(shard), max_items=1, failover_after_s=600.0) as writer:
            await writer.append(PAYLOADS[0])
            with pytest.raises(UnavailableError, match="within 60 s"):
                await writer.append(PAYLOADS[1])

    run(main())


def test_callers_of_a_writer_that_is_over_are_not_kept_by_its_error() -> None:
    async def main() -> None:
        async with writing(ChangingDirectory(FaultyShard())) as writer:
            await writer.close()
            for _ in range(20):
                with pytest.raises(UnavailableError) as caught:
                    await writer.append(PAYLOADS[0])
            assert len(traceback.extract_tb(caught.value.__traceback__)) < 5

    run(main())


def test_a_rejected_item_is_counted_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard), max_items=1) as writer:
            await writer.append(b"\xff\xff")
            await writer.append(PAYLOADS[0])
            assert await writer.flush(10.0) == 0
            assert (writer.stats.num_rejected, writer.stats.num_acked) == (1, 1)
            assert await shard.stored() == [1]

    run(main())
    assert "shard a rejected trajectory 0 (2 bytes), 1 so far: payload is no Trajectory" in caplog.text


def test_refusals_surface_from_append() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard), max_items=1, table="nope") as writer:
            await writer.append(PAYLOADS[0])
            with pytest.raises(NotFoundError, match="no replay table 'nope'"):
                await writer.append(PAYLOADS[1])
            with pytest.raises(NotFoundError):
                await writer.append(PAYLOADS[2])
            assert await writer.flush(3600.0) == 1
            assert asyncio.get_running_loop().time() < 10.0

    run(main())


def test_close_refuses_those_who_wait_and_lets_go_of_the_shards() -> None:
    async def main() -> None:
        shard = FaultyShard()
        before = len(asyncio.all_tasks())
        async with writing(ChangingDirectory(shard), max_items=1) as writer:
            shard.silent = True
            await writer.append(PAYLOADS[0])
            waiting = asyncio.ensure_future(writer.append(PAYLOADS[1]))
            await settle()
            await writer.close()
            with pytest.raises(UnavailableError, match="closed"):
                await waiting
            with pytest.raises(UnavailableError, match="closed"):
                await writer.append(PAYLOADS[2])
        await asyncio.sleep(1.0)
        assert len(asyncio.all_tasks()) == before

    run(main())


def test_several_trajectories_are_one_append_with_one_ack() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard)) as writer:
            await writer.append(PAYLOADS[:3])
            await writer.append(PAYLOADS[3])
            assert await writer.flush(10.0) == 0
            assert writer.stats.num_acked == 2
            items = (await shard.shard.sample("train", 10, 1.0)).items
            assert [(item.sequence, item.payloads) for item in items] == [
                (0, (PAYLOADS[0],)),
                (0, (PAYLOADS[1],)),
                (0, (PAYLOADS[2],)),
                (1, (PAYLOADS[3],)),
            ]

    run(main())


def test_priorities_travel_with_their_trajectories() -> None:
    async def main() -> None:
        shard = FaultyShard(table=SequenceTable(alpha=1.0))
        async with writing(ChangingDirectory(shard)) as writer:
            await writer.append([payload(number, envs=1) for number in range(2)], [3.0, 5.0])
            await writer.append(payload(2, envs=1), np.array([[7.0]]))
            await writer.append(payload(3, envs=1))
            assert await writer.flush(10.0) == 0
            sampled = await shard.shard.sample("train", 1000, 1.0)
            assert {item.key: item.mass for item in sampled.items} == {1: 3.0, 2: 5.0, 3: 7.0, 4: 7.0}

    run(main())


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_priority_that_no_table_takes_is_refused_here(priority: float) -> None:
    async def main() -> None:
        shard = FaultyShard(table=SequenceTable(alpha=1.0))
        async with writing(ChangingDirectory(shard)) as writer:
            with pytest.raises(InvalidArgumentError, match="is not a finite number of at least 0"):
                await writer.append(payload(envs=1), [priority])
            with pytest.raises(InvalidArgumentError, match="without a trajectory"):
                await writer.append([])
            assert writer.num_unacked == 0

    run(main())


def test_declared_columns_are_told_to_every_shard() -> None:
    async def main() -> None:
        shards = [FaultyShard(name) for name in "ab"]
        declared = (ArraySpec("action", "int64", (), num_categories=3),)
        async with writing(ChangingDirectory(*shards), declared=declared) as writer:
            await writer.append(PAYLOADS[2])
            await writer.append(PAYLOADS[3])
            assert await writer.flush(10.0) == 0
            assert (writer.stats.num_acked, writer.stats.num_rejected) == (1, 1)
            assert "action" in writer.stats.last_rejection, "the action 3 is none of 3"
        other = (ArraySpec("action", "int64", (), num_categories=5),)
        life = Life("b", "run")
        async with writing(ChangingDirectory(*shards), life=life, declared=other, max_items=1) as writer:
            await writer.append(PAYLOADS[0])
            with pytest.raises(FailedPreconditionError, match="action"):
                await writer.append(PAYLOADS[0])

    run(main())
