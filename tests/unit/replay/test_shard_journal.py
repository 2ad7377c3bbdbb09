"""When an append is acked, if its table has a journal: once it is written, and never before."""

from __future__ import annotations

import asyncio

import pytest

import services.replay.stored_table
from services.replay.storage.recovery import RecoveryReport
from shoal.clients.replay_shard import Ack, Outcome
from shoal.errors import UnavailableError
from shoal.journal.events import Event
from tests.unit.replay.shards import LIFE, an, make_shard, stats_of
from tests.unit.replay.virtual_time import run, settle


class ManualJournal:
    """A journal whose every answer is the test's to give."""

    degraded = ""
    disk_bytes = 7
    pending_bytes = 0

    def __init__(self) -> None:
        self.room = True
        self.writes: list[asyncio.Future[None]] = []

    def start(self) -> None:
        return None

    def record(self, event: Event) -> asyncio.Future[None]:
        self.writes.append(asyncio.get_running_loop().create_future())
        return self.writes[-1]

    async def has_room(self, timeout_s: float) -> bool:
        if not self.room:
            await asyncio.sleep(timeout_s)
        return self.room

    def reclaim(self, oldest_key: int) -> None:
        return None

    async def close(self, timeout_s: float) -> None:
        return None


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> ManualJournal:
    manual = ManualJournal()
    monkeypatch.setattr(services.replay.stored_table, "Journal", lambda *_args, **_more: manual)
    monkeypatch.setattr(services.replay.stored_table, "recover", lambda *_args, **_more: RecoveryReport())

    async def at_once(_name, function):  # type: ignore[no-untyped-def]
        return function()

    monkeypatch.setattr(services.replay.stored_table, "in_thread", at_once)
    return manual


def test_an_ack_waits_for_the_journal(journal: ManualJournal) -> None:
    async def main() -> None:
        shard = make_shard(durability="wal")
        with pytest.raises(UnavailableError, match="reading its files"):
            await shard.append(LIFE, "train", an(0))
        with pytest.raises(UnavailableError, match="reading its files"):
            shard.stats()
        await shard.open()
        ack = asyncio.ensure_future(shard.append(LIFE, "train", an(0)))
        await settle()
        assert not ack.done()
        assert stats_of(shard).num_items == 1
        journal.writes[0].set_result(None)
        assert await ack == Ack(0, Outcome.STORED)
        assert (stats_of(shard).disk_bytes, stats_of(shard).durability) == (7, "wal")
        await shard.close()

    run(main())


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_resend_of_what_is_not_written_yet_waits_for_that_and_is_then_a_repeat(
    journal: ManualJournal, how: str
) -> None:
    async def main() -> None:
        shard = make_shard(durability="fsync")
        await shard.open()
        first = asyncio.ensure_future(shard.append(LIFE, "train", an(0, timeout_s=2.0)))
        await settle()
        if how == "cancel":
            first.cancel()
            await settle()
        else:
            assert await first == Ack(0, Outcome.PENDING)
        # An ack now would be a lie: the first one may still be lost.
        assert (await shard.append(LIFE, "train", an(0, timeout_s=3.0))).outcome is Outcome.PENDING
        resend = asyncio.ensure_future(shard.append(LIFE, "train", an(0, timeout_s=60.0)))
        await asyncio.sleep(5.0)
        assert not resend.done()
        journal.writes[0].set_result(None)
        assert await resend == Ack(0, Outcome.DUPLICATE)
        assert len(journal.writes) == 1
        stats = stats_of(shard)
        assert (stats.num_items, stats.num_inserted, stats.num_duplicates) == (1, 1, 1)
        assert stats.num_insert_timeouts == (2 if how == "timeout" else 1)
        await shard.close()

    run(main())


def test_a_write_that_never_will_be_is_never_acked(journal: ManualJournal) -> None:
    async def main() -> None:
        shard = make_shard(durability="wal")
        await shard.open()
        first = asyncio.ensure_future(shard.append(LIFE, "train", an(0, timeout_s=2.0)))
        await settle()
        journal.writes[0].cancel()
        assert (await first).outcome is Outcome.PENDING
        assert (await shard.append(LIFE, "train", an(0, timeout_s=2.0))).outcome is Outcome.PENDING
        await shard.close()

    run(main())


def test_a_journal_without_room_makes_inserts_wait_and_samples_go_on(journal: ManualJournal) -> None:
    async def main() -> None:
        shard = make_shard(durability="wal")
        await shard.open()
        first = asyncio.ensure_future(shard.append(LIFE, "train", an(0)))
        await settle()
        journal.writes[0].set_result(None)
        await first
        journal.room = False
        assert await shard.append(LIFE, "train", an(1, timeout_s=4.0)) == Ack(1, Outcome.TIMED_OUT)
        assert asyncio.get_running_loop().time() == pytest.approx(4.0)
        assert stats_of(shard).num_insert_timeouts == 1
        assert [item.sequence for item in (await shard.sample("train", 1)).items] == [0]
        journal.room = True
        second = asyncio.ensure_future(shard.append(LIFE, "train", an(1)))
        await settle()
        journal.writes[-1].set_result(None)
        assert await second == Ack(1, Outcome.STORED)
        await shard.close()

    run(main())


def test_appends_are_stored_while_the_disk_is_busy_with_those_before(journal: ManualJournal) -> None:
    async def main() -> None:
        shard = make_shard(durability="fsync")
        await shard.open()
        pending = [await shard.begin_append(LIFE, "train", an(sequence)) for sequence in range(5)]
        assert stats_of(shard).num_items == 5
        answers = [asyncio.ensure_future(one.ack()) for one in pending]
        await settle()
        assert not any(answer.done() for answer in answers)
        for write in journal.writes:
            write.set_result(None)
        assert await asyncio.gather(*answers) == [Ack(sequence, Outcome.STORED) for sequence in range(5)]
        # The repeat of one that is not safe yet is no ack either.
        unsafe = await shard.begin_append(LIFE, "train", an(5))
        assert (await shard.append(LIFE, "train", an(5, timeout_s=1.0))).outcome is Outcome.PENDING
        journal.writes[-1].set_result(None)
        assert await unsafe.ack() == Ack(5, Outcome.STORED)
        await shard.close()

    run(main())
