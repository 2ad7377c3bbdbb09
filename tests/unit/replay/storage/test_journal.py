"""The journal with its thread: group commit, rotation, room; a disk that refuses, hangs and comes back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.replay.storage import journal as journal_module
from services.replay.storage.journal import Journal
from shoal.config.tables import QueueTable
from shoal.errors import UnavailableError, UserError
from shoal.journal.reader import list_segments
from shoal.rpc.backoff import Backoff
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import TableDouble, inserted, recovered

WAIT_S = 30.0


class Rig:
    """A table and its journal, as a process would have them."""

    def __init__(self, directory: Path, clock: Callable[[], float] | None = None, **settings: Any) -> None:
        self.directory = directory
        self.files = FaultyFiles()
        found = recovered(directory)
        self.table = found.table
        self.journal = Journal(
            directory,
            QueueTable(**{"durability": "fsync", **settings}),
            self.table.save,
            found.report.next_segment,
            self.files,
            found.report.segments,
            **({"clock": clock} if clock else {}),
            backoff=Backoff(0.001, 0.005),
        )
        self.table.sink = self.journal

    async def write(self, *data: bytes) -> None:
        await within(asyncio.gather(*map(self.table.insert, data)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)


async def within(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, WAIT_S)


def as_it_is(directory: Path) -> TableDouble:
    """What is in the files while attempts to write fail, whose files come and go."""
    while True:
        try:
            return recovered(directory).table
        except UserError as error:
            if "No such file" not in str(error):
                raise


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Rig]:
    rig = Rig(directory, **settings)
    rig.journal.start()
    try:
        yield rig
    finally:
        rig.files.heal()
        rig.files.may_append.set()
        await rig.journal.close(WAIT_S)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_all_that_queues_up_is_one_write_and_one_fsync(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            await rig.write(b"first")
            before = rig.files.calls.copy()
            rig.files.may_append.clear()
            rig.files.appending.clear()
            held = rig.table.insert(b"held up")
            await rig.until(rig.files.appending.is_set)
            waiting = [rig.table.insert(b"%d" % i) for i in range(1000)]
            rig.files.may_append.set()
            await within(asyncio.gather(held, *waiting))
            calls = rig.files.calls - before
            print(f"1001 records while the disk was busy: {calls['append']} writes, {calls['fsync']} fsyncs")
            assert (calls["append"], calls["fsync"]) == (2, 2)

    run(main())
    assert recovered(tmp_path / "t").table.num_items == 1002


@pytest.mark.parametrize("durability", ["wal", "fsync"])
def test_an_ack_means_that_it_is_in_the_file(tmp_path: Path, durability: str) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", durability=durability) as rig:
            for i in range(20):
                await rig.write(b"%d" % i)
                # As after kill -9: nothing more is written.
                assert recovered(tmp_path / "t").table.contents[i + 1] == b"%d" % i
            await within(rig.table.remove(1))
            await within(rig.table.set_priority(2, 7.0))
            await within(rig.table.sample(3))
            found = recovered(tmp_path / "t").table
            assert 1 not in found.items
            assert found.priorities[2] == 7.0
            assert found.num_samples == 3

    run(main())


def test_a_restart_of_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        for life in range(4):
            async with running(tmp_path / "t") as rig:
                assert rig.table.num_items == 10 * life
                await rig.write(*(b"%d-%d" % (life, i) for i in range(10)))
        found = recovered(tmp_path / "t")
        assert sorted(found.table.items) == list(range(1, 41))
        assert found.report.num_events == 0, "the last state is that of the end"
        assert found.table.contents[35] == b"3-4"

    run(main())


def test_a_new_segment_begins_when_one_is_full_and_old_ones_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", segment_bytes=1 << 14) as rig:
            rig.table.max_items = 50
            for i in range(500):
                await rig.write(b"%04d" % i * 100)
                assert rig.journal.disk_bytes < 8 * (1 << 14)
            numbers = [int(path.stem) for path in list_segments(tmp_path / "t")]
            print(f"500 items of 400 bytes, 50 kept, segments of 16 KiB: files {numbers}")
            assert numbers[-1] > 10
            assert numbers[0] > 5
        assert recovered(tmp_path / "t", max_items=50).table.contents == rig.table.contents

    run(main())


def test_a_drained_queue_frees_its_files_without_new_inserts(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", segment_bytes=1 << 12) as rig:
            for i in range(100):
                await rig.write(b"%04d" % i * 100)
            num_before = len(list_segments(tmp_path / "t"))
            for key in range(1, 101):
                rig.table.remove(key)
            # Two states, and the files go that neither of them needs.
            calls = rig.files.calls["create"]
            for number in (1, 2):
                rig.journal.reclaim(rig.table.oldest_key)
                await rig.until(lambda number=number: rig.files.calls["create"] == calls + number)
            await rig.until(lambda: len(list_segments(tmp_path / "t")) <= 2)
            print(f"files of a drained queue: {num_before} -> {len(list_segments(tmp_path / 't'))}")
            assert num_before > 5
            # Nothing to gain any more: nothing happens.
            calls = rig.files.calls["create"]
            rig.journal.reclaim(rig.table.oldest_key)
            await rig.write(b"more")
            assert rig.files.calls["create"] == calls

    run(main())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["append", "fsync"])
def test_a_disk_that_refuses_withholds_acks_and_recovers(
    tmp_path: Path, number: int, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            await rig.write(b"before")
            rig.files.fail(number, call, partial_bytes=30)
            refused = [rig.table.insert(b"refused %d" % i) for i in range(10)]
            await rig.until(lambda: bool(rig.journal.degraded))
            reason = rig.journal.degraded
            assert not await rig.journal.has_room(0.01)
            attempts = rig.files.calls["append"]
            await rig.until(lambda: rig.files.calls["append"] > attempts or call == "fsync")
            assert not any(future.done() for future in refused)
            assert as_it_is(tmp_path / "t").contents[1] == b"before"
            rig.table.remove(1)
            room = asyncio.create_task(rig.journal.has_room(WAIT_S))
            rig.files.heal()
            await within(asyncio.gather(*refused))
            assert await room
            assert rig.journal.degraded == ""
            await rig.write(b"after")
            found = recovered(tmp_path / "t").table
            assert found.contents == rig.table.contents
            assert rig.journal.pending_bytes == 0
            print(f"degraded ({reason}), then well: 12 acked, {12 - 1 - found.num_items} lost")

    run(main())
    assert [record.levelname for record in caplog.records if "cannot write" in record.message] == ["ERROR"]
    assert "writes again after" in caplog.text


def test_a_full_disk_takes_writes_again_when_there_is_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", segment_bytes=1 << 13) as rig:
            rig.files.capacity = 60_000
            written: dict[int, bytes] = {}
            futures: list[asyncio.Future[None]] = []
            while not rig.journal.degraded:
                key, data = rig.table.next_key, b"%06d" % rig.table.next_key * 50
                futures.append(rig.table.insert(data))
                written[key] = data
                await asyncio.wait((futures[-1],), timeout=0.05)
            acked = {
                key: data
                for (key, data), future in zip(written.items(), futures, strict=True)
                if future.done()
            }
            withheld = len(futures) - len(acked)
            found = as_it_is(tmp_path / "t")
            lost = [key for key, data in acked.items() if found.contents.get(key) != data]
            assert not lost
            assert len(acked) > 50
            rig.files.capacity = 200_000
            await within(asyncio.gather(*futures))
            found = recovered(tmp_path / "t").table
            lost += [key for key, data in acked.items() if found.contents.get(key) != data]
            print(f"disk full after {len(acked)} acks, {withheld} withheld; acked then lost: {len(lost)}")
            assert not lost
            assert found.num_corrupt == 0

    run(main())


def test_events_beside_inserts_take_bounded_memory_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_PENDING_BYTES", 10_000)

    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            await rig.write(b"one", b"two")
            rig.files.fail(errno.ENOSPC, "append")
            withheld = rig.table.insert(b"three")
            await rig.until(lambda: bool(rig.journal.degraded))
            most = 0
            for i in range(10_000):
                rig.table.set_priority(1, float(i))
                if i % 100 == 0:
                    await rig.until(lambda: rig.journal.pending_bytes < 50_000)
                most = max(most, rig.journal.pending_bytes)
            print(f"10000 updates while the disk was full: at most {most} bytes kept")
            rig.files.heal()
            await within(withheld)
            await within(rig.table.sample(1))
            found = recovered(tmp_path / "t").table
            assert found.priorities == {1: 9999.0, 2: 1.0, 3: 1.0}
            assert rig.journal.pending_bytes == 0

    run(main())


def test_events_beside_inserts_take_bounded_memory_while_a_write_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_PENDING_BYTES", 10_000)

    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            await rig.write(b"one", b"two")
            rig.files.may_append.clear()
            rig.files.appending.clear()
            withheld = rig.table.insert(b"three")
            await rig.until(rig.files.appending.is_set)
            most = most_records = 0
            for i in range(10_000):
                rig.table.set_priority(1, float(i))
                await asyncio.sleep(0)
                most = max(most, rig.journal.pending_bytes)
                most_records = max(most_records, len(rig.journal._queue))
            print(f"10000 updates while a write hung: at most {most} bytes in {most_records} records kept")
            assert most < 15_000
            assert most_records < 200
            rig.files.may_append.set()
            await within(withheld)
            await within(rig.table.sample(1))
            found = recovered(tmp_path / "t").table
            assert found.priorities == {1: 9999.0, 2: 1.0, 3: 1.0}
            assert rig.journal.pending_bytes == 0

    run(main())


def test_a_slow_disk_is_shown_and_makes_inserts_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_PENDING_BYTES", 10_000)
    now = 1000.0

    async def main() -> None:
        nonlocal now
        async with running(tmp_path / "t", clock=lambda: now) as rig:
            await rig.write(b"before")
            rig.files.may_append.clear()
            rig.files.appending.clear()
            futures = [rig.table.insert(bytes(6000))]
            await rig.until(rig.files.appending.is_set)
            assert await rig.journal.has_room(0.0)
            futures.append(rig.table.insert(bytes(6000)))
            assert not await rig.journal.has_room(0.01)
            assert rig.journal.degraded == ""
            now += 6.0
            assert "slow" in rig.journal.degraded
            print(rig.journal.degraded)
            assert not any(future.done() for future in futures)
            room = asyncio.create_task(rig.journal.has_room(WAIT_S))
            rig.files.may_append.set()
            await within(asyncio.gather(*futures))
            assert await room
            assert rig.journal.degraded == ""

    run(main())


def test_wal_syncs_in_the_background(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", durability="wal", sync_every_s=0.01) as rig:
            await rig.write(b"one")
            await rig.until(lambda: rig.table.items[1].payloads[0].is_synced)
            rig.files.fail(errno.EIO, "fsync")
            await rig.write(b"two")
            # The ack of `wal` does not wait for the disk; then the fsync fails, and it is written again.
            await rig.until(lambda: bool(rig.journal.degraded))
            rig.files.heal()
            await rig.until(lambda: not rig.journal.degraded)
            rig.files.lose_power(tmp_path / "after")
            assert set(recovered(tmp_path / "after").table.contents.values()) == {b"one", b"two"}

    run(main())


def test_closing_on_a_broken_disk_ends_and_says_what_was_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.journal.start()
        await rig.write(b"acked")
        rig.files.fail(errno.ENOSPC, "append")
        future = rig.table.insert(b"never acked")
        await rig.journal.close(timeout_s=0.05)
        await rig.until(future.done)
        assert isinstance(future.exception(), UnavailableError)
        assert recovered(tmp_path / "t").table.contents == {1: b"acked"}

    run(main())
    assert "records were not written before the end" in caplog.text


def test_a_bug_in_a_record_is_shown_and_not_acked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            await rig.write(b"one")
            future = rig.table.sink.record(_broken())
            await rig.until(lambda: "internal error" in rig.journal.degraded)
            assert not future.done()
            rig.journal._give_up.set()

    run(main())
    assert caplog.text.count("a record cannot be written") == 1


def _broken() -> Any:
    event = inserted(2, b"x")
    event.payloads[0].data = None
    return event
