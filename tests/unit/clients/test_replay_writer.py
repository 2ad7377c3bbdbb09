"""The writer against real shards in this process; connections break, lose replies or fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.clients.replay_writer
from services.replay.dedup import Claim, Dedup
from shoal.clients.replay import Ack
from shoal.clients.replay_writer import ReplayWriter
from shoal.config.tree import ActorSection, QueueTable, RpcSection
from shoal.errors import NotFoundError, UnavailableError
from shoal.records import Life
from tests.unit.clients.faulty_shards import ChangingDirectory, FaultyShard
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle

LIFE = Life("actor", "run")
RPC = RpcSection(max_backoff_s=0.5)
FAILOVER_S = 5.0
PAYLOADS = [payload(number) for number in range(200)]


class Forgetful(Dedup):
    """The control: every item is new."""

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int, *, stored: bool) -> None:
        return None


@asynccontextmanager
async def writing(
    directory: ChangingDirectory,
    *,
    max_items: int = 4,
    max_bytes: int = 64 << 20,
    failover_after_s: float = FAILOVER_S,
    table: str = "train",
) -> AsyncIterator[ReplayWriter]:
    actor = ActorSection(
        max_unacked_items=max_items, max_unacked_bytes=max_bytes, failover_after_s=failover_after_s
    )
    writer = ReplayWriter(directory, directory.connect, LIFE, table, actor, RPC)
    writer.start()
    try:
        yield writer
    finally:
        await writer.close()
        await settle()


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
            await writer.append(payload(width=20_000))
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


def test_after_a_break_the_unacked_are_sent_again_in_order_and_stored_once() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard), max_items=10) as writer:
            await writer.append(PAYLOADS[0])
            assert await writer.flush(10.0) == 0
            shard.silent = True
            for number in range(1, 6):
                await writer.append(PAYLOADS[number])
            await settle()
            shard.break_streams()
            shard.silent = False
            assert await writer.flush(10.0) == 0
            assert await shard.stored() == list(range(6))
            assert writer.stats.num_resent == 5

    run(main())


def test_what_waited_for_room_when_the_stream_broke_keeps_its_order() -> None:
    async def main() -> None:
        shard = FaultyShard(table=QueueTable(max_items=1))
        async with writing(ChangingDirectory(shard), max_items=10) as writer:
            for number in range(6):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(0.1)
            shard.break_streams()
            await asyncio.sleep(1.0)
            out = []
            for _ in range(6):
                out += await shard.stored()
                await settle()
            assert out == list(range(6))

    run(main())


@pytest.mark.parametrize("dedup", [Dedup, Forgetful])
def test_replies_lost_after_the_insert_happened(dedup: type[Dedup]) -> None:
    """A quarter of the replies is lost. With dedup stored = sent; the control stores repeats."""

    async def main() -> None:
        shard = FaultyShard(make_dedup=dedup)
        replies = 0

        def loses(ack: Ack) -> bool:
            nonlocal replies
            replies += 1
            return replies % 4 == 0

        shard.loses = loses
        async with writing(ChangingDirectory(shard), max_items=8) as writer:
            for number in range(200):
                await writer.append(PAYLOADS[number])
            assert await writer.flush(1000.0) == 0
            stored = await shard.stored()
            repeats = len(stored) - len(set(stored))
            print(f"dedup {dedup is Dedup}: sent 200, stored {len(stored)}, repeats {repeats}")
            assert set(stored) == set(range(200))
            if dedup is Dedup:
                assert repeats == 0
                assert shard.stats.num_duplicates > 0
            else:
                assert repeats > 0

    run(main())


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


def test_one_shard_alone_keeps_its_items_however_long_it_is_away() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard)) as writer:
            await writer.append(PAYLOADS[0])
            assert await writer.flush(10.0) == 0
            shard.kill()
            for number in range(1, 5):
                await writer.append(PAYLOADS[number])
            fifth = asyncio.ensure_future(writer.append(PAYLOADS[5]))
            await asyncio.sleep(3600.0)
            assert not fifth.done()
            assert shard.num_dials > 1000, "dialled for ever"
            assert writer.stats.num_moved == 0
            shard.restart()
            await fifth
            assert await writer.flush(10.0) == 0
            assert await shard.stored() == [1, 2, 3, 4, 5]

    run(main())


def test_a_stream_to_the_only_shard_that_got_stuck_is_opened_anew() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard)) as writer:
            await asyncio.sleep(0.1)
            shard.silent = True
            for number in range(3):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(FAILOVER_S - 0.5)
            assert shard.num_dials == 1
            await asyncio.sleep(3.0)
            assert shard.num_dials > 1
            shard.silent = False
            assert await writer.flush(10.0) == 0
            assert await shard.stored() == [0, 1, 2]
            assert writer.stats.num_moved == 0

    run(main())


def test_a_shard_that_accepts_a_new_stream_has_its_time_to_answer_again() -> None:
    """What it was sent before it went away may be stored there: another shard would store it twice."""

    async def main() -> None:
        a, b = FaultyShard("a", QueueTable(max_items=1)), FaultyShard("b")
        async with writing(ChangingDirectory(a, b)) as writer:
            await asyncio.sleep(0.1)
            await a.shard.append(Life("another", "run"), "train", 7, PAYLOADS[7])
            for number in range(2):
                await writer.append(PAYLOADS[number])
            await settle()
            a.kill()
            await asyncio.sleep(FAILOVER_S - 1.0)
            a.down = False
            # It accepts within half a second, and is full.
            await asyncio.sleep(2.4)
            assert (writer.num_unacked, writer.stats.num_moved) == (1, 0)
            assert await a.stored() == [7]
            assert await writer.flush(1.0) == 0
            assert len(await a.stored()) == len(await b.stored()) == 1

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


def test_a_shard_that_comes_back_in_time_keeps_its_items() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=20) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            for number in range(10):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(0.1)
            a.kill()
            a.silent = False
            await asyncio.sleep(2.0)
            a.down = False
            assert await writer.flush(10.0) == 0
            assert writer.stats.num_moved == 0
            in_a, in_b = await a.stored(), await b.stored()
            assert in_a == sorted(in_a)
            assert sorted(in_a + in_b) == list(range(10))

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
            await a.shard.append(Life("another", "run"), "train", 0, PAYLOADS[0])
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


def test_the_oldest_unacked_item_never_falls_out_of_the_shards_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shoal.clients.replay_writer, "SEQUENCE_WINDOW", 10)

    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=100, failover_after_s=600.0) as writer:
            await asyncio.sleep(0.1)
            a.silent = True
            appends = [asyncio.ensure_future(writer.append(item)) for item in PAYLOADS[:50]]
            await asyncio.sleep(60.0)
            assert sum(task.done() for task in appends) <= 11
            a.silent = False
            await asyncio.gather(*appends)
            assert await writer.flush(10.0) == 0
            assert sorted(await a.stored() + await b.stored()) == list(range(50))

    run(main())


@settings(max_examples=40)
@given(st.data())
def test_everything_is_stored_exactly_once_under_any_breaks(data: st.DataObject) -> None:
    """Breaks, lost replies, full tables and outages, but no fail-over: that alone may store on two shards."""

    async def main() -> None:
        shards = [FaultyShard(name, QueueTable(max_items=3)) for name in "abc"]
        out: list[int] = []
        async with writing(ChangingDirectory(*shards), max_items=5, failover_after_s=600.0) as writer:
            appends = [asyncio.ensure_future(writer.append(item)) for item in PAYLOADS[:30]]
            for _ in range(data.draw(st.integers(0, 30))):
                shard = data.draw(st.sampled_from(shards))
                fault = data.draw(st.sampled_from(["break", "lose", "keep", "down", "up", "sample", "wait"]))
                if fault == "break":
                    shard.break_streams()
                elif fault == "lose":
                    shard.loses = lambda ack: ack.sequence % 3 == 0
                elif fault == "keep":
                    shard.loses = lambda ack: False
                elif fault == "down":
                    shard.kill()
                elif fault == "up":
                    shard.down = False
                elif fault == "sample":
                    out += await shard.stored()
                await asyncio.sleep(data.draw(st.sampled_from([0.0, 0.01, 0.3, 3.0])))
            for shard in shards:
                shard.down = False
                shard.loses = lambda ack: False
            while not all(task.done() for task in appends) or writer.num_unacked:
                for shard in shards:
                    out += await shard.stored()
                await asyncio.sleep(1.0)
            for shard in shards:
                out += await shard.stored()
            assert sorted(out) == list(range(30))

    run(main())
