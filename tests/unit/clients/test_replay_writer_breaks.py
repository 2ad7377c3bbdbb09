"""The writer while connections break, lose replies or fall silent: everything is stored, and once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.replay.dedup import Claim, Dedup
from shoal.clients.replay_shard import Ack, Append
from shoal.config.tables import QueueTable
from shoal.records import Life
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.faulty_shards import FaultyShard
from tests.unit.clients.writing import FAILOVER_S, PAYLOADS, writing
from tests.unit.replay.virtual_time import run, settle


class Forgetful(Dedup):
    """The control: every item is new."""

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int) -> None:
        return None


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


def test_one_shard_alone_keeps_its_items_however_long_it_is_away() -> None:
    async def main() -> None:
        shard = FaultyShard()
        async with writing(ChangingDirectory(shard)) as writer:
            await writer.append(PAYLOADS[0])
            assert await writer.flush(10.0) == 0
            shard.kill()
            for number in range(1, 5):
                await writer.append(PAYLOADS[number])
            fifth = asyncio.ensure_future(writer.append(PAYLOADS[5], timeout_s=None))
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


def test_a_shard_that_accepts_a_new_stream_has_its_time_to_answer_again() -> None:
    """What it was sent before it went away may be stored there: another shard would store it twice."""

    async def main() -> None:
        a, b = FaultyShard("a", QueueTable(max_items=1)), FaultyShard("b")
        async with writing(ChangingDirectory(a, b)) as writer:
            await asyncio.sleep(0.1)
            await a.shard.append(Life("another", "run"), "train", Append(7, (PAYLOADS[7],)))
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
