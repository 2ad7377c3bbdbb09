"""What a new process finds in the files, whole and damaged."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.replay.dedup import Claim
from services.replay.storage import recovery
from services.replay.storage.segments import SegmentLog, holds_any
from shoal.errors import UserError
from shoal.journal import framing
from shoal.journal.events import Inserted, SeenLife, TableState
from shoal.journal.format import Record
from shoal.journal.reader import list_segments, read_segment, segment_name
from shoal.records import Life
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import (
    LIFE,
    SPEC,
    TableDouble,
    inserted,
    recovered,
    stored,
)
from tests.unit.replay.virtual_time import run


def write_files(directory: Path, *files: list[Record]) -> None:
    """A segment per list, in which a state is wherever the list has it."""
    directory.mkdir(exist_ok=True)
    first = len(list_segments(directory)) + 1
    log = SegmentLog(directory, FaultyFiles(), first, (), lambda: 0.0, is_fsync=True, sync_every_s=1.0)
    for records in files:
        log.write(records)
    log.close()


def data_of(key: int, size: int = 150) -> bytes:
    return random.Random(key).randbytes(size)


def make_journal(directory: Path, num_segments: int = 4, per_segment: int = 40) -> TableDouble:
    """Inserts, removals and priorities, with a state at the head of each file."""
    table = TableDouble()
    files: list[list[Record]] = []

    class Sink:
        def record(self, event: Record) -> None:
            files[-1].append(event)

    table.sink = Sink()
    for _ in range(num_segments):
        files.append([table.save()])
        for _ in range(per_segment):
            table.insert(data_of(table.next_key))
            table.set_priority(table.next_key - 1, float(table.next_key))
        table.remove(table.oldest_key, table.oldest_key + 1)
    write_files(directory, *files)
    return table


def served_wrong(table: TableDouble) -> int:
    return sum(data != data_of(key) for key, data in table.contents.items() if data is not None)


def test_an_empty_directory_is_made_and_holds_nothing(tmp_path: Path) -> None:
    found = recovered(tmp_path / "run" / "table")
    assert found.table.num_items == 0
    assert found.report.next_segment == 1
    assert found.report.lines == []
    assert (tmp_path / "run" / "table").is_dir()


def test_all_of_it_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    table = make_journal(tmp_path / "t")
    found = recovered(tmp_path / "t")
    assert found.table.contents == table.contents
    assert found.table.priorities == table.priorities
    assert found.table.next_key == table.next_key
    assert found.signature.specs == (SPEC,)
    assert found.report.next_segment == 5
    assert [segment.max_key for segment in found.report.segments] == [40, 80, 120, 160]
    assert found.report.num_bytes == sum(path.stat().st_size for path in list_segments(tmp_path / "t"))
    [line] = [record.message for record in caplog.records if "items recovered" in record.message]
    print(line.replace(str(tmp_path), ""))
    assert "152 items recovered, 0 damaged frames skipped" in line


def last_write_of(path: Path) -> int:
    """Where the last frame begins."""
    return [part.offset for part in read_segment(path)][-1]


def test_a_crash_at_every_byte_of_the_last_write_costs_nothing_before_it(tmp_path: Path) -> None:
    table = TableDouble()
    write_files(tmp_path / "t", [table.save(), *(inserted(key, data_of(key)) for key in range(1, 11))])
    [path] = list_segments(tmp_path / "t")
    whole = path.read_bytes()
    start = last_write_of(path)
    for size in range(start, len(whole)):
        path.write_bytes(whole[:size])
        found = recovered(tmp_path / "t")
        assert found.table.contents == {key: data_of(key) for key in range(1, 10)}, size
        assert found.report.num_corrupt_frames == 0
        assert len(found.report.lines) == (size > start)
    print(f"crash at each of the {len(whole) - start} bytes of the last write: 9 of 9 items back each time")


def damage_everywhere(
    directory: Path, scratch: Path, damage: Callable[[bytearray, int], None]
) -> dict[str, int]:
    """At every 1 % of every file; counts over all of them."""
    totals = {"rounds": 0, "wrong": 0, "lost_most": 0, "silent": 0}
    num_items = recovered(directory).table.num_items
    for path in list_segments(directory):
        whole = path.read_bytes()
        for percent in range(100):
            shutil.copytree(directory, scratch)
            data = bytearray(whole)
            damage(data, percent * len(whole) // 100)
            (scratch / path.name).write_bytes(data)
            found = recovered(scratch)
            totals["rounds"] += 1
            totals["wrong"] += served_wrong(found.table)
            num_lost = num_items - found.table.num_items
            totals["lost_most"] = max(totals["lost_most"], num_lost)
            totals["silent"] += num_lost > 0 and not found.report.lines
            # It starts again, and again.
            assert recovered(scratch).table.contents == found.table.contents
            shutil.rmtree(scratch)
    return totals


def flip(data: bytearray, offset: int) -> None:
    data[offset] ^= 1 << offset % 8


def cut(data: bytearray, offset: int) -> None:
    del data[offset:]


def test_a_flipped_bit_at_every_percent_costs_one_item(tmp_path: Path) -> None:
    make_journal(tmp_path / "t", num_segments=2, per_segment=20)
    totals = damage_everywhere(tmp_path / "t", tmp_path / "scratch", flip)
    print(f"a flipped bit at every 1 % of 2 files: {totals}")
    assert totals["wrong"] == 0
    assert totals["lost_most"] <= 1
    assert totals["silent"] == 0


def test_control_without_the_crc_damaged_items_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_journal(tmp_path / "t", num_segments=1)
    monkeypatch.setattr(framing, "_is_whole", lambda data, crc: True)
    wrong = 0
    whole = list_segments(tmp_path / "t")[0].read_bytes()
    for offset in range(0, len(whole), 101):
        data = bytearray(whole)
        flip(data, offset)
        (tmp_path / "t" / segment_name(1)).write_bytes(data)
        wrong += served_wrong(recovered(tmp_path / "t").table)
    print(f"control, CRC not checked: {wrong} damaged items served")
    assert wrong > 10


def test_a_file_cut_at_every_percent_costs_what_was_cut(tmp_path: Path) -> None:
    table = make_journal(tmp_path / "t", num_segments=2, per_segment=20)
    totals = damage_everywhere(tmp_path / "t", tmp_path / "scratch", cut)
    print(f"2 files cut at every 1 %: {totals}, {table.num_items} items in all")
    assert totals["wrong"] == 0
    assert totals["lost_most"] <= 20
    assert totals["silent"] == 0


def test_items_that_are_in_no_file_are_reported(tmp_path: Path) -> None:
    make_journal(tmp_path / "t")
    list_segments(tmp_path / "t")[1].unlink()
    found = recovered(tmp_path / "t")
    assert found.table.num_corrupt == 40
    assert found.report.lines == ["40 items are in no readable file and count as corrupt"]


def test_without_any_whole_state_all_events_happen(tmp_path: Path) -> None:
    table = make_journal(tmp_path / "t", num_segments=2)
    list_segments(tmp_path / "t")[0].unlink()
    path = tmp_path / "t" / segment_name(2)
    data = bytearray(path.read_bytes())
    flip(data, 60)
    path.write_bytes(data)
    found = recovered(tmp_path / "t")
    assert found.table.contents == {key: data_of(key) for key in range(41, 81)}
    assert found.table.next_key == table.next_key
    assert any("no whole state" in line for line in found.report.lines)
    assert any("damaged in 1 places" in line for line in found.report.lines)


def test_files_of_garbage_are_survived(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    rng = random.Random(1)
    for number in range(1, 30):
        (tmp_path / "t" / segment_name(number)).write_bytes(rng.randbytes(rng.randrange(5000)))
    found = recovered(tmp_path / "t")
    assert found.table.num_items == 0
    assert found.report.next_segment == 30
    assert found.report.num_corrupt_frames >= 28


def test_repeats_are_known_also_if_their_ack_was_on_its_way_when_the_state_was_saved(tmp_path: Path) -> None:
    table = TableDouble()
    other = Life("other", "run")
    late = [inserted(1, b"a", sequence=4), inserted(2, b"b", sequence=9, life=other)]
    for event in late:
        table.apply(event)
    state = table.save()
    state = TableState(**{**state.__dict__, "lives": (SeenLife(LIFE, 3, 0b1111),)})
    write_files(tmp_path / "t", [*late, state, inserted(3, b"c", sequence=5)])
    found = recovered(tmp_path / "t")

    async def claims() -> list[Claim]:
        asked = [(LIFE, 0), (LIFE, 4), (LIFE, 5), (other, 9), (LIFE, 6), (other, 8)]
        return [await found.dedup.claim(life, sequence, 0.0) for life, sequence in asked]

    assert run(claims()) == [Claim.DUPLICATE] * 4 + [Claim.GRANTED] * 2


def test_an_insert_written_twice_happens_once(tmp_path: Path) -> None:
    table = TableDouble()
    start = table.save()
    twice = inserted(1, b"one")
    write_files(tmp_path / "t", [start, twice, inserted(2, b"two")])
    # A second file with the same insert, whose state is damaged.
    table.apply(twice)
    write_files(tmp_path / "t", [twice, table.save(), inserted(3, b"three")])
    path = tmp_path / "t" / segment_name(2)
    whole = path.read_bytes()
    assert recovered(tmp_path / "t").table.contents == {1: b"one", 3: b"three"}
    state_at = [part.offset for part in read_segment(path)][1]
    data = bytearray(whole)
    flip(data, state_at + 60)
    path.write_bytes(data)
    assert recovered(tmp_path / "t").table.contents == {1: b"one", 2: b"two", 3: b"three"}


def test_beyond_its_ram_only_the_newest_payloads_are_loaded(tmp_path: Path) -> None:
    table = make_journal(tmp_path / "t")
    found = recovered(tmp_path / "t", max_ram_bytes=30 * 150)
    in_ram = [key for key, data in found.table.contents.items() if data is not None]
    assert in_ram == sorted(table.items)[-30:]
    for item in found.table.items.values():
        location = item.payloads[0].location
        assert location is not None
        whole = (tmp_path / "t" / segment_name(location.segment)).read_bytes()
        assert whole[location.offset :][:150] == data_of(item.first_key)


def test_an_insert_of_many_keys_keeps_the_data_of_those_that_live(tmp_path: Path) -> None:
    table = TableDouble()
    many = Inserted(1, 4, LIFE, 1, tuple(stored(b"%d" % i) for i in range(4)), np.ones(4))
    table.items[3] = inserted(3, b"2")
    table.priorities[3] = 1.0
    table.next_key = 5
    write_files(tmp_path / "t", [many, table.save()])
    items: list[Inserted] = []

    class Watching(TableDouble):
        def restore(self, state: TableState, found: list[Inserted]) -> None:
            items.extend(found)

    double = recovered(tmp_path / "t")
    recovery.recover(tmp_path / "t", Watching(), double.dedup, double.signature)  # type: ignore[arg-type]
    [item] = items
    assert [payload.data for payload in item.payloads] == [None, None, b"2", None]


def test_a_state_of_1e5_items_comes_back(tmp_path: Path) -> None:
    # Many to an insert, as from a large group of environments.
    table, events = TableDouble(), []
    for first in range(1, 100_001, 100):
        payloads = tuple(stored(b"%08d" % key) for key in range(first, first + 100))
        events.append(Inserted(first, 100, LIFE, first, payloads, np.ones(100)))
        table.apply(events[-1])
    write_files(tmp_path / "t", [TableDouble().save(), *events], [table.save()])
    found = recovered(tmp_path / "t")
    assert found.table.num_items == 100_000
    assert found.table.contents == table.contents
    print(found.report)


def test_what_a_killed_snapshot_left_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    leftover = tmp_path / "t" / (segment_name(3) + ".tmp")
    leftover.touch()
    assert recovered(tmp_path / "t").report.next_segment == 1
    assert not leftover.exists()


def test_files_of_another_kind_of_table_are_refused(tmp_path: Path) -> None:
    make_journal(tmp_path / "t", num_segments=1)
    with pytest.raises(UserError, match=r"queue table and the configuration says sequence.*another name"):
        recovered(tmp_path / "t", kind="sequence")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path, number: int) -> None:
    files = FaultyFiles()
    files.fail(number, "make_directory")
    with pytest.raises(
        UserError, match=r"cannot keep replay files in .*: (this process may|the file system)"
    ):
        recovered(tmp_path / "t", files)


def test_a_place_that_is_no_directory_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    with pytest.raises(UserError, match="cannot keep replay files in"):
        recovered(tmp_path / "t")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE, errno.ENOMEM, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_opened_now_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    make_journal(tmp_path / "t", num_segments=3)
    system_open = os.open

    def failing(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).endswith(segment_name(2)):
            raise OSError(number, os.strerror(number))
        return system_open(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with pytest.raises(UserError, match=rf"cannot read .*{segment_name(2)}: {os.strerror(number)}; mend"):
            recovered(tmp_path / "t")
    assert recovered(tmp_path / "t").table.num_corrupt == 0


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOMEM, errno.EACCES])
def test_a_read_that_fails_without_damage_stops_the_start(tmp_path: Path, number: int) -> None:
    make_journal(tmp_path / "t", num_segments=1)
    files = FaultyFiles()
    files.fail(number, "pread")
    with pytest.raises(UserError, match=rf"cannot read .*{segment_name(1)}: {os.strerror(number)}; mend"):
        recovered(tmp_path / "t", files)


def test_a_file_that_was_not_read_to_its_end_is_not_deleted(tmp_path: Path) -> None:
    make_journal(tmp_path / "t", num_segments=2)
    path = list_segments(tmp_path / "t")[0]

    class BadSector(FaultyFiles):
        def pread(self, descriptor: int, size: int, offset: int) -> bytes:
            is_first = os.path.samestat(os.fstat(descriptor), path.stat())
            if is_first and offset <= 5000 < offset + size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(descriptor, size, offset)

    found = recovered(tmp_path / "t", BadSector())
    assert 0 < found.table.num_corrupt < 40
    nothing = np.empty(0, np.uint64)
    assert [holds_any(segment, nothing) for segment in found.report.segments] == [True, False]
    # Control: what is read and does not match is damaged for good.
    data = bytearray(path.read_bytes())
    flip(data, 5000)
    path.write_bytes(data)
    assert not any(holds_any(segment, nothing) for segment in recovered(tmp_path / "t").report.segments)


def test_a_disk_that_cannot_read_costs_what_it_cannot_read(tmp_path: Path) -> None:
    make_journal(tmp_path / "t", num_segments=2)
    files = FaultyFiles()
    files.fail(errno.EIO, "pread")
    found = recovered(tmp_path / "t", files)
    assert found.table.num_items == 0
    assert len(found.report.lines) == 3
    assert found.report.next_segment == 3
