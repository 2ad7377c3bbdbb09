"""Reading the segment files of a replay table: for recovery and for the command line. Never writes.

A table's directory holds files named by a number that counts up: their order is that of the journal.
Blocking; a file is read from one thread. Files that are being written can be read: what is not there yet is
a torn tail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from shoal.errors import InvalidArgumentError
from shoal.journal.format import Record, decode_record
from shoal.journal.framing import Damage, Frame, scan_frames

SEGMENT_SUFFIX = ".seg"
_SEGMENT_NAME = re.compile(r"(\d{12,19})\.seg")

# Read at a time, and looked at from there.
_WINDOW_BYTES = 4 << 20
# What a disk that cannot read one byte gives up at least.
_PAGE_BYTES = 4096

Pread = Callable[[int, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """One record and the bytes of the file that it takes."""

    offset: int
    length: int
    record: Record


def segment_name(number: int) -> str:
    return f"{number:012d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """None: not the name of a segment file."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def list_segments(directory: Path) -> list[Path]:
    """The segment files of a table, oldest first. None if there is no such directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
    return [directory / segment_name(number) for number in numbers]


def read_segment(path: Path, pread: Pread = os.pread) -> Iterator[Entry | Damage]:
    """The records of one file in order, and what is wrong in between.

    Payloads hold their data: drop what you do not need before you go on. Raises UserError for a file of
    another format, OSError if it cannot be opened or read; only what the disk reports as lost is damage.
    """
    number = segment_number(path.name)
    if number is None:
        raise InvalidArgumentError(f"{path} is no segment file: those are named like {segment_name(1)}")
    with SegmentFile(path, pread) as file:
        for part in scan_frames(file, str(path)):
            if isinstance(part, Frame):
                yield _decoded(part, number)
            elif file.is_unread:
                yield Damage(part.offset, part.length, "the disk cannot read all of it", is_unread=True)
            else:
                yield part


def _decoded(frame: Frame, segment: int) -> Entry | Damage:
    try:
        return Entry(frame.offset, frame.length, decode_record(frame, segment))
    except InvalidArgumentError as error:
        return Damage(frame.offset, frame.length, str(error))


class SegmentFile:
    """A file that is read as it is sliced, a window at a time.

    Not mapped into memory: a sector that cannot be read would end the process. Here it reads as zeros, which
    no CRC takes for a frame, and `is_unread` tells.
    """

    def __init__(self, path: Path, pread: Pread = os.pread) -> None:
        self.is_unread = False
        self._pread = pread
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size
        self._window = b""
        self._window_offset = 0

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(self._size)
        at = start - self._window_offset
        if at < 0 or at + stop - start > len(self._window):
            self._window = self._read(start, max(stop - start, min(_WINDOW_BYTES, self._size - start)))
            self._window_offset, at = start, 0
        return memoryview(self._window)[at : at + stop - start]

    def _read(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = self._read_some(offset, size)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _read_some(self, offset: int, size: int) -> bytes:
        """At least one byte."""
        try:
            # An empty answer: the file was cut short after it was opened.
            return self._pread(self._descriptor, size, offset) or bytes(size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        if size <= _PAGE_BYTES:
            self.is_unread = True
            return bytes(size)
        # In ever smaller parts, so that only what is really damaged is lost.
        return self._read_some(offset, (size // 2 + _PAGE_BYTES - 1) // _PAGE_BYTES * _PAGE_BYTES)
