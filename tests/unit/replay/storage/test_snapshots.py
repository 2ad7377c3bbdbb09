"""Snapshots of a table that keeps no journal: whole or not there, incremental, and never in the way."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from services.replay.storage.files import RealFiles
from services.replay.storage.snapshots import Snapshots
from shoal.config.tables import QueueTable
from shoal.journal.reader import list_segments, segment_name, segment_number
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import recovered
from tests.unit.replay.storage.test_recovery import cut, damage_everywhere, data_of, flip


class Sink:
    """Of a `memory` table: nobody listens."""

    def record(self, event: object) -> None:
        return None


class Rig:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.now_s = 1000.0
        self.files = FaultyFiles()
        found = recovered(directory)
        self.table = found.table
        self.table.sink = Sink()
        self.snapshots = Snapshots(
            directory,
            QueueTable(**{"snapshot_every_s": 1000.0, **settings}),
            self.table,
            self.table.save,
            found.report.next_segment,
            self.files,
            found.report.segments,
            clock=lambda: self.now_s,
        )

    def insert(self, num_items: int) -> None:
        for _ in range(num_items):
            self.table.insert(data_of(self.table.next_key))


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_each_snapshot_adds_what_came_since_the_last(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        sizes = []
        for _ in range(4):
            rig.insert(100)
            before = rig.snapshots.disk_bytes
            assert await rig.snapshots.snapshot()
            sizes.append(rig.snapshots.disk_bytes - before)
            assert recovered(tmp_path / "t").table.contents == rig.table.contents
        print(f"bytes written by 4 snapshots after 100 inserts each: {sizes}")
        assert max(sizes) < 1.2 * min(sizes)
        await rig.snapshots.close()

    run(main())


def test_a_disk_that_hangs_is_shown_while_it_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.insert(10)
        rig.files.may_append.clear()
        writing = asyncio.create_task(rig.snapshots.snapshot())
        while not rig.files.appending.is_set():
            await asyncio.sleep(0)
        assert rig.snapshots.degraded == ""
        rig.now_s += 6.0
        assert rig.snapshots.degraded == "the disk is slow: a write of a snapshot has taken 6 s so far"
        rig.files.may_append.set()
        assert await writing
        assert rig.snapshots.degraded == ""

    run(main())


def test_a_restart_goes_on_with_the_files_that_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        for life in range(4):
            rig = Rig(tmp_path / "t")
            assert rig.table.num_items == 50 * life
            rig.insert(50)
            await rig.snapshots.close()
            # Items are written once, whoever wrote them.
            num_bytes = sum(path.stat().st_size for path in list_segments(tmp_path / "t"))
            assert num_bytes < 300 * 50 * (life + 1)
        assert recovered(tmp_path / "t").table.contents == {key: data_of(key) for key in range(1, 201)}

    run(main())


def test_files_whose_items_are_gone_are_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.table.max_items = 100
        for _ in range(10):
            rig.insert(50)
            assert await rig.snapshots.snapshot()
        # Two with the items, and two states.
        assert len(list_segments(tmp_path / "t")) == 4
        assert recovered(tmp_path / "t").table.contents == rig.table.contents
        await rig.snapshots.close()

    run(main())


def test_an_old_item_keeps_its_own_file_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        for _ in range(10):
            rig.insert(50)
            assert await rig.snapshots.snapshot()
            rig.table.remove(*range(2, rig.table.next_key))
        rig.insert(50)
        assert await rig.snapshots.snapshot()
        assert len(list_segments(tmp_path / "t")) == 4
        assert recovered(tmp_path / "t").table.contents == rig.table.contents
        await rig.snapshots.close()

    run(main())


def test_many_small_snapshots_take_as_much_room_as_the_items_and_two_states(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.insert(5000)
        assert await rig.snapshots.snapshot()
        state_bytes = list_segments(tmp_path / "t")[-1].stat().st_size
        before = rig.snapshots.disk_bytes
        for _ in range(20):
            rig.insert(1)
            assert await rig.snapshots.snapshot()
        added = rig.snapshots.disk_bytes - before - state_bytes
        print(f"20 snapshots of 1 item each added {added} bytes to {before}; a state has {state_bytes}")
        assert state_bytes > 5000
        assert added < 20 * 400
        files = list_segments(tmp_path / "t")
        assert rig.snapshots.disk_bytes == sum(path.stat().st_size for path in files)
        # If the newest state is damaged, only what came since the one before is at stake.
        damaged = bytearray(files[-1].read_bytes())
        damaged[len(damaged) // 2] ^= 1
        files[-1].write_bytes(damaged)
        found = recovered(tmp_path / "t")
        assert found.table.contents == rig.table.contents
        assert found.report.num_corrupt_frames == 1

    run(main())


def test_nothing_is_written_when_nothing_has_happened(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        changes: list[Callable[[], object]] = [
            lambda: rig.insert(2),
            lambda: rig.table.sample(1),
            lambda: rig.table.set_priority(2, 3.0),
            lambda: rig.table.remove(1),
        ]
        for change in changes:
            change()
            num_writes = rig.files.calls["append"]
            assert await rig.snapshots.snapshot()
            assert rig.files.calls["append"] > num_writes
            assert recovered(tmp_path / "t").table.priorities == rig.table.priorities
            calls = rig.files.calls.copy()
            assert await rig.snapshots.snapshot()
            await rig.snapshots.close()
            assert rig.files.calls == calls

    run(main())


@pytest.mark.parametrize("call", ["create", "append", "fsync", "rename", "fsync_directory"])
def test_a_failed_snapshot_keeps_the_last_one_and_is_tried_again(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t", segment_bytes=1 << 12)
        rig.insert(60)
        assert await rig.snapshots.snapshot()
        good = dict(rig.table.contents)
        rig.table.remove(*range(1, 60))
        rig.insert(60)
        rig.files.fail(errno.ENOSPC, call, partial_bytes=1000)
        for _ in range(3):
            assert not await rig.snapshots.snapshot()
            assert rig.snapshots.degraded == "the disk is full"
            assert recovered(tmp_path / "t").table.contents == good
        rig.files.heal()
        assert await rig.snapshots.snapshot()
        assert rig.snapshots.degraded == ""
        assert recovered(tmp_path / "t").table.contents == rig.table.contents
        await rig.snapshots.close()

    run(main())
    assert caplog.text.count("cannot write a snapshot") == 1


def test_a_disk_that_is_read_only_for_a_while_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    class TurnsReadOnly(FaultyFiles):
        """From the first rename on."""

        def fsync_directory(self, path: Path) -> None:
            self.fail(errno.EROFS, "create", "append", "fsync", "rename", "delete", "fsync_directory")
            super().fsync_directory(path)

    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.insert(5)
        assert await rig.snapshots.snapshot()
        rig.insert(5)
        rig.snapshots._files = disk = TurnsReadOnly()
        for _ in range(3):
            assert not await rig.snapshots.snapshot()
            assert rig.snapshots.degraded == "the file system is read-only"
        disk.heal()
        # All names of the past may be taken, also by what nobody remembers.
        (tmp_path / "t" / f"{segment_name(6)}.tmp").touch()
        disk.fsync_directory = RealFiles().fsync_directory  # type: ignore[method-assign]
        assert await rig.snapshots.snapshot()
        numbers = [segment_number(path.name) for path in list_segments(tmp_path / "t")]
        assert numbers == [1, 2, 5, 6]
        assert recovered(tmp_path / "t").table.contents == rig.table.contents

    run(main())


def test_a_crash_at_any_moment_of_a_snapshot_finds_the_old_or_the_new_one(tmp_path: Path) -> None:
    class Copying(FaultyFiles):
        """Keeps a copy of the directory before every call that changes it."""

        num_copies = 0

        def _call(self, name: str) -> None:
            super()._call(name)
            if name in ("create", "fsync", "rename", "delete", "fsync_directory"):
                shutil.copytree(tmp_path / "t", tmp_path / f"copy-{self.num_copies}")
                self.num_copies += 1

    async def main() -> None:
        rig = Rig(tmp_path / "t", segment_bytes=1 << 12)
        rig.snapshots._files = files = Copying()
        states = [rig.table.contents]
        for _ in range(3):
            rig.insert(60)
            assert await rig.snapshots.snapshot()
            states.append(rig.table.contents)
        outcomes = [recovered(tmp_path / f"copy-{i}").table.contents for i in range(files.num_copies)]
        for outcome in outcomes:
            # Between two renames some of the new items are there already, and never a wrong one.
            assert all(data == data_of(key) for key, data in outcome.items())
            assert any(state.items() <= outcome.items() for state in states)
        partly = sum(outcome not in states for outcome in outcomes)
        print(f"{len(outcomes)} crashes in 3 snapshots: {partly} found some items of the next one besides")
        await rig.snapshots.close()

    run(main())


def test_power_lost_after_a_snapshot_costs_nothing_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t", segment_bytes=1 << 12)
        rig.insert(60)
        assert await rig.snapshots.snapshot()
        assert len(list_segments(tmp_path / "t")) > 2
        rig.files.lose_power(tmp_path / "after")
        assert recovered(tmp_path / "after").table.contents == rig.table.contents
        await rig.snapshots.close()

    run(main())


@pytest.mark.parametrize("damage", [flip, cut])
def test_damage_at_every_percent_of_a_snapshot_serves_nothing_wrong(
    tmp_path: Path, damage: Callable[[bytearray, int], None]
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        for _ in range(2):
            rig.insert(30)
            assert await rig.snapshots.snapshot()
        await rig.snapshots.close()

    run(main())
    totals = damage_everywhere(tmp_path / "t", tmp_path / "scratch", damage)
    print(f"{damage.__name__} at every 1 % of the files of snapshots: {totals}")
    assert totals["wrong"] == 0
    assert totals["silent"] == 0
    assert totals["lost_most"] <= (1 if damage is flip else 30)


def test_it_happens_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t", snapshot_every_s=0.01)
        rig.insert(5)
        rig.snapshots.start()
        async with asyncio.timeout(30):
            while not list_segments(tmp_path / "t"):
                await asyncio.sleep(0.001)
            rig.files.fail(errno.EIO, "append")
            rig.insert(1)
            while not rig.snapshots.degraded:
                await asyncio.sleep(0.001)
            rig.files.heal()
            while rig.snapshots.degraded:
                await asyncio.sleep(0.001)
        rig.insert(5)
        await rig.snapshots.close()
        assert recovered(tmp_path / "t").table.num_items == 11

    run(main())


def test_a_defect_is_shown_and_does_not_end_the_snapshots(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t", snapshot_every_s=0.01)
        rig.insert(5)
        items_from, rig.table.items_from = rig.table.items_from, None  # type: ignore[assignment,method-assign]
        rig.snapshots.start()
        async with asyncio.timeout(30):
            while not rig.snapshots.degraded:
                await asyncio.sleep(0.001)
            assert rig.snapshots.degraded == "TypeError: 'NoneType' object is not callable"
            rig.table.items_from = items_from  # type: ignore[method-assign]
            while rig.snapshots.degraded:
                await asyncio.sleep(0.001)
        await rig.snapshots.close()
        assert recovered(tmp_path / "t").table.num_items == 5

    run(main())
    assert "Traceback" in caplog.text


def test_closing_on_a_broken_disk_says_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.insert(5)
        rig.files.fail(errno.EROFS, "create")
        await rig.snapshots.close()

    run(main())
    assert "what came since the last snapshot is lost" in caplog.text
