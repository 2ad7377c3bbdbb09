"""Reading segment files from a disk that is not perfect."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import InvalidArgumentError
from shoal.journal import reader
from shoal.journal.events import Removed
from shoal.journal.format import encode_record
from shoal.journal.framing import Damage, encode_file_header, encode_frame
from shoal.journal.reader import Entry, list_segments, read_segment, segment_name, segment_number


def write_segment(path: Path, num_records: int, keys_each: int = 400) -> None:
    parts = [encode_file_header(1)]
    for i in range(num_records):
        meta, blobs = encode_record(Removed(np.arange(i, i + keys_each, dtype=np.uint64)))
        parts += encode_frame(meta, blobs, 1)
    path.write_bytes(b"".join(parts))


def first_keys(path: Path, pread: reader.Pread = os.pread) -> tuple[list[int], list[Damage]]:
    entries, damages = [], []
    for part in read_segment(path, pread):
        if isinstance(part, Entry):
            assert isinstance(part.record, Removed)
            entries.append(int(part.record.keys[0]))
        else:
            damages.append(part)
    return entries, damages


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in (segment_name(12), segment_name(9), "lock", "000000000001.seg.tmp", segment_name(10**13)):
        (tmp_path / name).touch()
    found = [segment_number(path.name) for path in list_segments(tmp_path)]
    assert found == [9, 12, 10**13]
    assert list_segments(tmp_path / "none") == []


@pytest.mark.parametrize("window_bytes", [1, 1000, 1 << 20])
def test_frames_of_any_size_are_read_through_a_window(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_WINDOW_BYTES", window_bytes)
    path = tmp_path / segment_name(1)
    write_segment(path, 50)
    assert first_keys(path) == (list(range(50)), [])


def test_a_part_of_the_disk_that_cannot_be_read_costs_the_frames_in_it(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    write_segment(path, 200)
    bad = range(50_000, 54_000)

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if offset < bad.stop and bad.start < offset + size:
            raise OSError(errno.EIO, "cannot read")
        return os.pread(descriptor, size, offset)

    keys, damages = first_keys(path, pread)
    lost = set(range(200)) - set(keys)
    print(f"4000 unreadable bytes of {path.stat().st_size}: {len(lost)} of 200 records lost")
    assert damages
    assert not any(damage.is_torn for damage in damages)
    # Pages are read or not: one more on either side.
    assert 0 < len(lost) <= 12_000 // 500
    assert sorted(lost) == list(range(min(lost), max(lost) + 1))


def test_a_file_that_shrinks_while_it_is_read_ends(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    write_segment(path, 50)
    half = path.stat().st_size // 2

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, max(min(size, half - offset), 0), offset)

    keys, damages = first_keys(path, pread)
    assert keys == list(range(len(keys)))
    assert 0 < len(keys) < 50
    assert len(damages) >= 1


def test_a_record_of_an_unknown_kind_counts_as_damage(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    path.write_bytes(b"".join([encode_file_header(1), *encode_frame(b"", (), 1)]))
    keys, [damage] = first_keys(path)
    assert keys == []
    assert "no kind" in damage.reason


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no segment file"):
        next(read_segment(tmp_path / "lock"))
    with pytest.raises(FileNotFoundError):
        next(read_segment(tmp_path / segment_name(1)))
