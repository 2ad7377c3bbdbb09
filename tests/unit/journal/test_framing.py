"""Frames: whatever happens to a file, a frame that comes out went in."""

from __future__ import annotations

import mmap
import struct
import tracemalloc
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.journal import framing
from shoal.journal.framing import (
    FILE_HEADER_BYTES,
    Damage,
    Frame,
    blob_offsets,
    encode_file_header,
    encode_frame,
    scan_frames,
)

FILE_ID = 0x1234_5678_9ABC_DEF0
Content = tuple[bytes, tuple[bytes, ...]]

CONTENTS: list[Content] = [
    (b"first", (b"a" * 20,)),
    (b"", ()),
    (b"third", (b"b" * 7, b"", b"c" * 30)),
    (b"last", (b"d" * 20_000,)),
]
contents = st.lists(
    st.tuples(st.binary(max_size=40), st.lists(st.binary(max_size=60), max_size=4)), max_size=6
)


def file_of(frames: list[Content], file_id: int = FILE_ID) -> bytes:
    parts = [encode_file_header(file_id)]
    for meta, blobs in frames:
        parts += encode_frame(meta, blobs, file_id)
    return b"".join(parts)


def scan(data: bytes) -> tuple[list[Content], list[Damage]]:
    """Frames and damage; together they must cover the file without gaps."""
    found: list[Content] = []
    damages: list[Damage] = []
    end = 0
    for part in scan_frames(data):
        if isinstance(part, Frame):
            found.append((bytes(part.meta), tuple(map(bytes, part.blobs))))
            assert part.offset == (end or FILE_HEADER_BYTES)
        else:
            damages.append(part)
            assert part.offset == (end or (0 if part.offset == 0 else FILE_HEADER_BYTES))
        end = part.offset + part.length
    assert end in (0, len(data))
    return found, damages


@given(contents)
def test_what_goes_in_comes_out(frames: list[tuple[bytes, list[bytes]]]) -> None:
    expected = [(meta, tuple(blobs)) for meta, blobs in frames]
    assert scan(file_of(expected)) == (expected, [])


@given(contents)
def test_offsets_of_blobs_are_places_in_the_file(frames: list[tuple[bytes, list[bytes]]]) -> None:
    data = file_of([(meta, tuple(blobs)) for meta, blobs in frames])
    for frame, (meta, blobs) in zip(scan_frames(data), frames, strict=True):
        assert isinstance(frame, Frame)
        assert list(frame.blob_offsets) == [frame.offset + place for place in blob_offsets(meta, blobs)]
        for offset, blob in zip(frame.blob_offsets, blobs, strict=True):
            assert data[offset : offset + len(blob)] == blob


def test_a_flipped_bit_costs_one_frame_wherever_it_is() -> None:
    data = file_of(CONTENTS)
    flips = [*range(700), *range(700, len(data), 97)]
    for offset in flips:
        damaged = bytearray(data)
        damaged[offset] ^= 1 << offset % 8
        found, damages = scan(bytes(damaged))
        assert all(frame in CONTENTS for frame in found), offset
        in_file_header = offset < FILE_HEADER_BYTES
        assert len(found) == len(CONTENTS) - (not in_file_header), offset
        assert len(damages) == 1, offset
    print(f"{len(flips)} flipped bits: frames that were not written served 0, lost at most 1 each")


def test_control_without_the_crc_damaged_frames_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_is_whole", lambda data, crc: True)
    data = file_of(CONTENTS)
    num_served = 0
    for offset in range(FILE_HEADER_BYTES, len(data), 97):
        damaged = bytearray(data)
        damaged[offset] ^= 1
        num_served += any(frame not in CONTENTS for frame in scan(bytes(damaged))[0])
    print(f"control, CRC of bodies not checked: {num_served} damaged frames served")
    assert num_served > 100


def test_a_file_cut_anywhere_keeps_the_frames_before_and_is_torn() -> None:
    data = file_of(CONTENTS)
    ends = [FILE_HEADER_BYTES]
    for part in scan_frames(data):
        ends.append(part.offset + part.length)
    for size in [*range(1, 700), *range(700, len(data), 97)]:
        found, damages = scan(data[:size])
        assert found == CONTENTS[: sum(end <= size for end in ends[1:])], size
        assert [damage.is_torn for damage in damages] == ([] if size in ends else [True]), size


def test_damage_in_the_middle_is_not_torn() -> None:
    data = bytearray(file_of(CONTENTS))
    second = FILE_HEADER_BYTES + len(b"".join(encode_frame(*CONTENTS[0], FILE_ID)))
    data[second] ^= 1
    found, [damage] = scan(bytes(data))
    assert found == [CONTENTS[0], *CONTENTS[2:]]
    assert damage.offset == second
    assert not damage.is_torn


@given(st.binary(max_size=300))
def test_garbage_before_a_frame_is_passed_over(garbage: bytes) -> None:
    whole = b"".join(encode_frame(*CONTENTS[2], FILE_ID))
    data = encode_file_header(FILE_ID) + garbage + whole
    found, damages = scan(data)
    assert found == [CONTENTS[2]]
    assert sum(damage.length for damage in damages) == len(garbage)


def test_a_header_across_the_border_of_two_searched_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_SEARCH_BYTES", 16)
    whole = b"".join(encode_frame(*CONTENTS[2], FILE_ID))
    for size in range(1, 80):
        assert scan(encode_file_header(FILE_ID) + bytes(size) + whole)[0] == [CONTENTS[2]]


def test_bytes_that_look_like_headers_are_looked_through_once() -> None:
    class Counting:
        num_bytes = 0

        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, part: slice) -> bytes:
            piece = data[part]
            self.num_bytes += len(piece)
            return piece

    whole = b"".join(encode_frame(*CONTENTS[2], FILE_ID))
    data = encode_file_header(FILE_ID) + b"\xf1SHF" * 10_000 + whole
    counting = Counting()
    frames = [part for part in scan_frames(counting) if isinstance(part, Frame)]
    print(f"10000 false headers in {len(data)} bytes: {counting.num_bytes} bytes read")
    assert len(frames) == 1
    # Once to search them, and each of the headers.
    assert counting.num_bytes < 2 * len(data) + 10_001 * framing.FRAME_HEADER_BYTES


def test_a_frame_within_a_payload_is_never_taken_for_one_of_the_file() -> None:
    forged = b"".join(encode_frame(b"forged", (b"payload",), FILE_ID + 1))
    data = bytearray(file_of([(b"honest", (forged,)), CONTENTS[0]]))
    data[FILE_HEADER_BYTES] ^= 1
    assert scan(bytes(data))[0] == [CONTENTS[0]]
    # Control: with the id of the file, which no client can know, it would be.
    known = b"".join(encode_frame(b"forged", (b"payload",), FILE_ID))
    data = bytearray(file_of([(b"honest", (known,)), CONTENTS[0]]))
    data[FILE_HEADER_BYTES] ^= 1
    assert (b"forged", (b"payload",)) in scan(bytes(data))[0]


def test_lengths_are_no_allocations() -> None:
    header = struct.pack("<4sIIQQI", b"\xf1SHF", 0xFFFF_FFFF, 0xFFFF_FFFF, 1 << 62, FILE_ID, 0)
    data = encode_file_header(FILE_ID) + header + struct.pack("<I", crc32c(header)) + bytes(1000)
    tracemalloc.start()
    try:
        found, [damage] = scan(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print(f"a frame that claims 2^62 bytes: {peak} bytes allocated at most")
    assert not found
    assert damage.is_torn
    assert peak < 100_000


def test_a_newer_file_is_refused_with_its_name_and_both_versions() -> None:
    header = struct.pack("<8sIQ", b"SHOALJNL", 2, FILE_ID)
    data = header + struct.pack("<I", crc32c(header))
    with pytest.raises(UserError, match=r"seg 7 has format version 2 .* reads version 1"):
        list(scan_frames(data, "seg 7"))


def test_it_reads_a_mapped_file_and_a_memoryview(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of(CONTENTS))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        num_mapped = sum(isinstance(part, Frame) for part in scan_frames(mapped))
    assert num_mapped == len(CONTENTS)
    assert sum(isinstance(part, Frame) for part in scan_frames(memoryview(path.read_bytes()))) == 4


def test_an_empty_file_holds_nothing() -> None:
    assert scan(b"") == ([], [Damage(0, 0, "the file is empty", is_torn=True)])
