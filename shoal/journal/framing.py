"""The layout of a segment file: a file header, then frames, each with a CRC32C of its header and of its body.

Pure functions over bytes; `shoal.journal.format` says what the frames mean, `shoal.journal.reader` reads
files. All numbers are little-endian.

    file header  magic 8 bytes, version u32, file id u64, CRC32C of these u32
    frame        header: magic 4 bytes, meta length u32, number of blobs u32, body length u64, file id u64,
                         CRC32C of the body u32, CRC32C of the header up to here u32
                 body:   length of each blob u64, meta, blobs

The file id is drawn at random for each file. After a damaged header the scanner looks for the next frame by
its magic, and a payload may well hold the bytes of a frame (of another journal, or made up by whoever sent
it): only a frame of this very file carries its id. No length is trusted before the CRC of its header, and
none above what is left of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c

from shoal.errors import UserError

FORMAT_VERSION = 1

_FILE_MAGIC = b"SHOALJNL"
_FRAME_MAGIC = b"\xf1SHF"
_FILE_HEADER = struct.Struct("<8sIQI")
_FRAME_HEADER = struct.Struct("<4sIIQQII")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

FILE_HEADER_BYTES = _FILE_HEADER.size
FRAME_HEADER_BYTES = _FRAME_HEADER.size

# Frames up to this size are handed to the system as one buffer: copying them costs less than many small ones.
_JOIN_BYTES = 1 << 14
# How much is looked through at a time for the next frame.
_SEARCH_BYTES = 1 << 20


class Data(Protocol):
    """What is scanned: bytes, a memoryview, an mmap, or a file that is read as it is sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame with a valid body. `blob_offsets` are places in the file."""

    offset: int
    length: int
    meta: memoryview
    blobs: tuple[memoryview, ...]
    blob_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no valid frame.

    `is_torn`: the file ends within a frame, as after a crash. `is_unread`: the disk did not read all of the
    file, so the frame may be whole.
    """

    offset: int
    length: int
    reason: str
    is_torn: bool = False
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class _Header:
    meta_length: int
    num_blobs: int
    body_length: int
    file_id: int
    body_crc: int


def encode_file_header(file_id: int) -> bytes:
    start = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, file_id, 0)[: -_CRC.size]
    return start + _CRC.pack(crc32c(start))


def encode_frame(meta: bytes, blobs: Sequence[bytes], file_id: int) -> list[bytes]:
    """The buffers to write, in order."""
    start = b"".join([*map(_LENGTH.pack, map(len, blobs)), meta])
    body_crc, body_length = crc32c(start), len(start)
    for blob in blobs:
        body_crc = crc32c(blob, body_crc)
        body_length += len(blob)
    header = _FRAME_HEADER.pack(_FRAME_MAGIC, len(meta), len(blobs), body_length, file_id, body_crc, 0)
    header = header[: -_CRC.size]
    header += _CRC.pack(crc32c(header))
    if body_length <= _JOIN_BYTES:
        return [b"".join([header, start, *blobs])]
    return [header + start, *blobs]


def blob_offsets(meta: bytes, blobs: Sequence[bytes]) -> list[int]:
    """Where each blob begins, counted from the first byte of its frame."""
    offset = FRAME_HEADER_BYTES + _LENGTH.size * len(blobs) + len(meta)
    offsets = []
    for blob in blobs:
        offsets.append(offset)
        offset += len(blob)
    return offsets


def scan_frames(data: Data, name: str = "journal file") -> Iterator[Frame | Damage]:
    """All frames of a file in order, and what is wrong in between. Memory is bounded by the largest frame.

    Raises UserError for a file of a newer version, whose frames may mean something else.
    """
    end = len(data)
    if end == 0:
        yield Damage(0, 0, "the file is empty", is_torn=True)
        return
    file_id, damage = _read_file_header(data, name)
    offset = FILE_HEADER_BYTES
    if damage is not None:
        yield damage
        offset = damage.length
    while offset < end:
        header = _read_header(data, offset, file_id)
        if header is None:
            damage = _skip_to_next_header(data, offset, file_id)
            yield damage
            offset += damage.length
            continue
        # If the file header was lost, the first frame says which file this is.
        file_id = header.file_id
        part = _read_body(data, offset, header)
        yield part
        offset += part.length


def _read_file_header(data: Data, name: str) -> tuple[int | None, Damage | None]:
    raw = bytes(data[:FILE_HEADER_BYTES])
    if len(raw) < FILE_HEADER_BYTES:
        return None, Damage(0, len(raw), "the file ends within its header", is_torn=True)
    magic, version, file_id, crc = _FILE_HEADER.unpack(raw)
    if magic != _FILE_MAGIC or not _is_whole(raw[: -_CRC.size], crc):
        return None, Damage(0, FILE_HEADER_BYTES, "the file header is damaged")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{name} has format version {version} and this release reads version {FORMAT_VERSION}: "
            "run the release that wrote it, or move the file away"
        )
    return file_id, None


def _read_header(data: Data, offset: int, file_id: int | None) -> _Header | None:
    """None: no header of this file begins here."""
    raw = bytes(data[offset : offset + FRAME_HEADER_BYTES])
    if len(raw) < FRAME_HEADER_BYTES:
        return None
    magic, meta_length, num_blobs, body_length, own_id, body_crc, header_crc = _FRAME_HEADER.unpack(raw)
    if magic != _FRAME_MAGIC or file_id not in (None, own_id):
        return None
    # Without its CRC a header is nothing but four bytes that look like one.
    if crc32c(raw[: -_CRC.size]) != header_crc or _LENGTH.size * num_blobs + meta_length > body_length:
        return None
    return _Header(meta_length, num_blobs, body_length, own_id, body_crc)


def _read_body(data: Data, offset: int, header: _Header) -> Frame | Damage:
    start = offset + FRAME_HEADER_BYTES
    left = len(data) - start
    if header.body_length > left:
        reason = f"the file ends {header.body_length - left} bytes before its last frame does"
        return Damage(offset, FRAME_HEADER_BYTES + left, reason, is_torn=True)
    body = memoryview(data[start : start + header.body_length])
    length = FRAME_HEADER_BYTES + header.body_length
    if not _is_whole(body, header.body_crc):
        return Damage(offset, length, "the CRC32C of a frame does not match its bytes")
    lengths = struct.unpack_from(f"<{header.num_blobs}Q", body)
    position = _LENGTH.size * header.num_blobs + header.meta_length
    meta = body[position - header.meta_length : position]
    if position + sum(lengths) != header.body_length:
        return Damage(offset, length, "the lengths in a frame do not add up")
    blobs, offsets = [], []
    for blob_length in lengths:
        blobs.append(body[position : position + blob_length])
        offsets.append(start + position)
        position += blob_length
    return Frame(offset, length, meta, tuple(blobs), tuple(offsets))


def _skip_to_next_header(data: Data, offset: int, file_id: int | None) -> Damage:
    end = len(data)
    position = offset + 1
    while position < end:
        # Two pieces overlap, so that a magic across their border is found.
        piece = bytes(data[position : position + _SEARCH_BYTES])
        found = piece.find(_FRAME_MAGIC)
        while found >= 0:
            if _read_header(data, position + found, file_id) is not None:
                return Damage(offset, position + found - offset, "a frame header is damaged")
            found = piece.find(_FRAME_MAGIC, found + 1)
        position += max(len(piece) - len(_FRAME_MAGIC) + 1, 1)
    is_torn = end - offset < FRAME_HEADER_BYTES
    reason = "the file ends within a frame header" if is_torn else "no frame header up to the end of the file"
    return Damage(offset, end - offset, reason, is_torn)


def _is_whole(data: bytes | memoryview, crc: int) -> bool:
    return crc32c(data) == crc
