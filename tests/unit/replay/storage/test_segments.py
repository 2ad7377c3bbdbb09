"""The row of files under every kind of refusal, without a thread and on a clock of its own."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.replay.storage import segments
from services.replay.storage.segments import SegmentLog, SegmentNeeded
from shoal.journal.events import Inserted, Removed
from shoal.journal.format import Record
from shoal.journal.reader import Entry, list_segments, read_segment
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import TableDouble, inserted, recovered

SYNC_EVERY_S = 1.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A table whose events are queued by hand and written when the test says so."""

    def __init__(self, directory: Path, durability: str = "fsync") -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.files = FaultyFiles()
        self.clock = Clock()
        self.log = SegmentLog(
            directory,
            self.files,
            1,
            (),
            self.clock,
            is_fsync=durability == "fsync",
            sync_every_s=SYNC_EVERY_S,
        )
        self.table = TableDouble(self)
        self.queue: list[Record] = []
        self.acked: dict[int, bytes] = {}
        self.queue.append(self.table.save())

    def record(self, event: Record) -> None:
        self.queue.append(event)

    def rotate(self) -> None:
        self.queue.append(self.table.save())

    def write(self) -> bool:
        """As the journal's thread does it: what was not written stays, and a state is fetched if needed."""
        try:
            self.log.write(self.queue)
        except SegmentNeeded:
            self.rotate()
            return False
        except OSError:
            return False
        for event in self.queue:
            if isinstance(event, Inserted):
                assert event.payloads[0].location is not None
                self.acked[event.first_key] = event.payloads[0].data or b""
        self.queue = []
        return True

    def sync(self) -> bool:
        try:
            if self.log.seconds_to_sync == 0.0:
                self.log.sync()
        except OSError:
            return False
        return True

    def check_nothing_acked_is_lost(self, directory: Path | None = None) -> int:
        found = recovered(directory or self.directory)
        kept = {key: data for key, data in self.acked.items() if key in self.table.items}
        lost = [key for key, data in kept.items() if found.table.contents.get(key) != data]
        assert found.table.num_corrupt == 0
        assert not lost
        return len(kept)


def payloads(num: int, size: int = 100) -> Iterator[bytes]:
    for i in range(num):
        yield random.Random(i).randbytes(size)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "table")


def test_one_write_of_many_records_is_one_append_and_one_fsync(rig: Rig) -> None:
    for data in payloads(50):
        rig.table.insert(data)
    assert rig.write()
    assert (rig.files.calls["append"], rig.files.calls["fsync"]) == (1, 1)
    assert rig.check_nothing_acked_is_lost() == 50


def test_the_place_of_a_payload_is_where_its_bytes_are(rig: Rig) -> None:
    for data in payloads(20):
        rig.table.insert(data)
        rig.write()
        if rig.table.next_key == 10:
            rig.rotate()
    for item in rig.table.items.values():
        [payload] = item.payloads
        assert payload.location is not None
        file = list_segments(rig.directory)[payload.location.segment - 1]
        assert file.read_bytes()[payload.location.offset :][: payload.size] == payload.data


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("partial_bytes", [0, 1, 150, 250])
@pytest.mark.parametrize("can_cut", [True, False])
def test_a_refused_write_is_repeated_and_applied_once(
    rig: Rig, number: int, partial_bytes: int, can_cut: bool
) -> None:
    rig.table.insert(b"before")
    assert rig.write()
    for data in payloads(3):
        rig.table.insert(data)
    rig.table.remove(1)
    rig.files.fail(number, "append", *(() if can_cut else ("truncate",)), partial_bytes=partial_bytes)
    assert not rig.write()
    assert not rig.write()
    # A crash now: what was acked is there, whatever the attempts left behind.
    found = recovered(rig.directory)
    assert found.table.contents.get(1) == b"before"
    rig.files.heal()
    rig.table.insert(b"after")
    assert rig.write() or rig.write()
    assert len(list_segments(rig.directory)) == (1 if can_cut else 2)
    found = recovered(rig.directory)
    assert found.table.contents == rig.table.contents
    assert found.report.num_corrupt_frames == 0


def test_after_a_failed_fsync_all_of_it_is_written_again(rig: Rig, tmp_path: Path) -> None:
    rig.table.insert(b"synced")
    assert rig.write()
    for data in payloads(3):
        rig.table.insert(data)
    rig.files.fail(errno.EIO, "fsync")
    assert not rig.write()
    assert set(rig.acked) == {1}
    rig.files.heal()
    rig.write()
    assert rig.write()
    rig.files.lose_power(tmp_path / "after")
    assert rig.check_nothing_acked_is_lost(tmp_path / "after") == 4
    assert len(list_segments(rig.directory)) == 2


def test_wal_writes_again_what_was_acked_and_not_synced(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "table", "wal")
    for data in payloads(3):
        rig.table.insert(data)
    assert rig.write()
    # Beyond its RAM a table drops what is in a file.
    for item in rig.table.items.values():
        item.payloads[0].data = None
    rig.files.fail(errno.EIO, "fsync")
    rig.clock.now += SYNC_EVERY_S
    assert not rig.sync()
    assert rig.log.is_lost
    rig.files.heal()
    rig.write()
    assert rig.write()
    assert not rig.log.is_lost
    rig.files.lose_power(tmp_path / "after")
    found = recovered(tmp_path / "after")
    assert found.table.contents == rig.acked
    # Control: of the file whose fsync failed the disk holds nothing.
    assert list_segments(tmp_path / "after")[0].stat().st_size == 0
    assert {item.payloads[0].location.segment for item in rig.table.items.values()} == {2}


def test_wal_loses_at_most_what_came_within_the_time_between_two_syncs(tmp_path: Path) -> None:
    worst = 0.0
    for seed in range(20):
        rng = random.Random(seed)
        rig = Rig(tmp_path / f"table-{seed}", "wal")
        written_at: dict[int, float] = {}
        for i in range(rng.randrange(1, 200)):
            rig.clock.now += rng.random() * 0.2
            rig.sync()
            rig.table.insert(f"{i}".encode())
            if rng.random() < 0.03:
                rig.rotate()
            assert rig.write()
            written_at[i + 1] = rig.clock.now
        rig.files.lose_power(tmp_path / f"after-{seed}")
        found = recovered(tmp_path / f"after-{seed}")
        assert found.table.num_corrupt == 0
        lost = [rig.clock.now - at for key, at in written_at.items() if key not in found.table.items]
        worst = max([worst, *lost])
    print(f"wal, power lost 20 times: the oldest lost item was {1e3 * worst:.0f} ms old (sync every 1000 ms)")
    assert 0 < worst <= SYNC_EVERY_S


@pytest.mark.parametrize("fsync_works", [True, False])
def test_fsync_loses_nothing_when_the_power_goes(tmp_path: Path, fsync_works: bool) -> None:
    num_lost = num_acked = 0
    for seed in range(20):
        rng = random.Random(seed)
        rig = Rig(tmp_path / f"table-{seed}")
        rig.files.fsync_works = fsync_works
        for data in payloads(rng.randrange(1, 100)):
            rig.table.insert(data)
            if rng.random() < 0.05:
                rig.rotate()
            if rng.random() < 0.5:
                rig.write()
        rig.files.lose_power(tmp_path / f"after-{seed}")
        found = recovered(tmp_path / f"after-{seed}")
        num_acked += len(rig.acked)
        num_lost += sum(found.table.contents.get(key) != data for key, data in rig.acked.items())
    what = "fsync" if fsync_works else "control, fsync does nothing"
    print(f"{what}: power lost 20 times, {num_acked} acked, {num_lost} lost")
    assert (num_lost == 0) == fsync_works


def test_every_mix_of_faults_keeps_what_was_acked(tmp_path: Path) -> None:
    num_acked = num_faults = 0
    for seed in range(30):
        rng = random.Random(seed)
        rig = Rig(tmp_path / f"table-{seed}", rng.choice(["wal", "fsync"]))
        for data in payloads(40):
            rig.table.insert(data)
            if rig.table.items and rng.random() < 0.4:
                rig.table.remove(rig.table.oldest_key)
            if rng.random() < 0.1:
                rig.rotate()
            if rng.random() < 0.3:
                calls = rng.sample(["append", "fsync", "truncate", "create", "delete", "fsync_directory"], 2)
                rig.files.fail(
                    rng.choice([errno.ENOSPC, errno.EIO]), *calls, partial_bytes=rng.randrange(600)
                )
                num_faults += 1
            elif rng.random() < 0.6:
                rig.files.heal()
            rig.clock.now += rng.random()
            rig.write()
            rig.sync()
            rig.log.reclaim()
            # A crash at any moment; items whose removal is not written yet may come back.
            found = recovered(rig.directory)
            assert all(
                found.table.contents.get(key) == rig.acked[key] for key in rig.acked if key in rig.table.items
            )
            assert found.table.num_corrupt == 0
        rig.files.heal()
        assert rig.write() or rig.write()
        rig.clock.now += SYNC_EVERY_S
        assert rig.sync()
        rig.files.lose_power(tmp_path / f"after-{seed}")
        found = recovered(tmp_path / f"after-{seed}")
        assert found.table.contents == rig.table.contents
        num_acked += len(rig.acked)
    print(f"{num_faults} faults in 30 runs: {num_acked} acked, 0 lost, 0 applied twice")


def test_files_go_when_neither_of_two_states_on_the_disk_needs_them(rig: Rig) -> None:
    for data in payloads(30):
        rig.table.insert(data)
        rig.write()
        if rig.table.next_key % 10 == 1:
            rig.rotate()
            rig.write()
    assert len(list_segments(rig.directory)) == 4
    rig.table.remove(*range(1, 16))
    rig.write()
    rig.log.reclaim()
    # Gone from the table, yet a state on the disk still names them.
    assert len(list_segments(rig.directory)) == 4
    rig.rotate()
    rig.write()
    rig.log.reclaim()
    assert len(list_segments(rig.directory)) == 5
    rig.rotate()
    rig.write()
    rig.log.reclaim()
    assert [path.name[10:12] for path in list_segments(rig.directory)] == ["02", "03", "05", "06"]
    assert rig.log.disk_bytes == sum(path.stat().st_size for path in list_segments(rig.directory))
    assert rig.check_nothing_acked_is_lost() == 15


def test_a_wal_file_goes_only_after_the_next_state_is_synced(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "table", "wal")
    rig.table.insert(b"one")
    rig.write()
    rig.table.remove(1)
    for _ in range(2):
        rig.rotate()
        rig.write()
    rig.log.reclaim()
    assert len(list_segments(rig.directory)) == 3
    rig.clock.now += SYNC_EVERY_S
    rig.sync()
    rig.log.reclaim()
    assert len(list_segments(rig.directory)) == 2


def test_the_file_with_the_newest_synced_state_stays_though_it_holds_no_items(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "table", "wal")
    rig.table.sample(7)
    rig.write()
    rig.rotate()
    rig.write()
    rig.log.reclaim()
    rig.files.lose_power(tmp_path / "after")
    assert recovered(tmp_path / "after").table.num_samples == 7


def test_a_file_that_cannot_be_deleted_is_tried_again(rig: Rig) -> None:
    rig.write()
    rig.files.fail(errno.EIO, "delete")
    for _ in range(3):
        rig.rotate()
        rig.write()
        rig.log.reclaim()
    assert len(list_segments(rig.directory)) == 4
    rig.files.heal()
    rig.rotate()
    rig.write()
    rig.log.reclaim()
    assert len(list_segments(rig.directory)) == 2


def test_much_unsynced_is_synced_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_UNSYNCED_BYTES", 1000)
    rig = Rig(tmp_path / "table", "wal")
    rig.table.insert(bytes(500))
    rig.write()
    assert rig.log.seconds_to_sync == SYNC_EVERY_S
    rig.table.insert(bytes(500))
    rig.write()
    assert rig.log.seconds_to_sync == 0.0
    rig.sync()
    assert rig.log.seconds_to_sync is None


@pytest.mark.parametrize("can_append", [True, False])
def test_what_comes_before_a_state_goes_into_the_file_before(rig: Rig, can_append: bool) -> None:
    """If that does not take it, the new file holds what its state lacks."""
    rig.write()
    rig.record(inserted(1, b"x"))
    rig.table.apply(rig.queue[-1])  # type: ignore[arg-type]
    rig.record(Removed(np.array([5], np.uint64)))
    rig.rotate()
    if not can_append:
        rig.files.fail(errno.ENOSPC, "append")
        assert not rig.write()
        rig.files.heal()
    assert rig.write()
    records = [
        [type(part.record).__name__ for part in read_segment(path) if isinstance(part, Entry)]
        for path in list_segments(rig.directory)
    ]
    if can_append:
        assert records == [["TableState", "Inserted", "Removed"], ["TableState"]]
    else:
        assert records == [["TableState"], ["Inserted", "TableState"]]
    assert rig.check_nothing_acked_is_lost() == 1
