"""The row of segment files that a journal writes, and what it does when the disk refuses.

Blocking, owned by the journal's writer thread (the loop only reads `closed` and `disk_bytes`). Every file
begins with a state, which covers all that was recorded before it on the event loop. What is unwritten then
still goes into the file before: with its own state it says the same as the new one, which may get damaged,
and so files are only deleted when neither of the two newest states needs them. If the file before does not
take it, only payloads are needed in the new one: such inserts stand in front of the state, so that it never
names an item that is in no file; the other events are in it.

A failed write is cut off before the next attempt. After a failed fsync nobody knows what the disk has, so
the file is left as it is and a new one begins.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from services.replay.storage.files import Files, try_to_delete, why
from shoal.journal.events import Inserted, Location, TableState
from shoal.journal.format import Record, encode_record
from shoal.journal.framing import blob_offsets, encode_file_header, encode_frame
from shoal.journal.reader import segment_name
from shoal.metrics import Clock

log = logging.getLogger(__name__)

# Payloads kept until an fsync says that they are on the disk; then it is asked for early.
MAX_UNSYNCED_BYTES = 64 << 20
# The `max_key` of a file that was not read to its end: any item may be in it.
UNKNOWN_KEY = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A file that is not written any more, and which keys its inserts may have: `max_key` 0: it has none."""

    number: int
    size: int
    min_key: int
    max_key: int


class Generation(NamedTuple):
    """A state that is on the disk: the number of its file, and its keys (uint64, ascending)."""

    number: int
    keys: np.ndarray


def holds_any(segment: Segment, keys: np.ndarray) -> bool:
    """Whether an item with one of these keys (uint64, ascending) may be in the file."""
    if segment.max_key in (0, UNKNOWN_KEY):
        return segment.max_key == UNKNOWN_KEY
    return _is_any_within(keys, segment.min_key, segment.max_key)


def _is_any_within(keys: np.ndarray, first: int, last: int) -> bool:
    # Of the same type as the keys, or NumPy would convert all of those.
    at = int(keys.searchsorted(np.uint64(first)))
    return at < keys.size and int(keys[at]) <= last


class SegmentNeeded(Exception):
    """There is no file to append to: write a state, which begins one."""


class Packed:
    """A record as it goes into a frame. Holds on to the payloads, which their table may drop meanwhile."""

    __slots__ = ("blobs", "meta", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.meta, self.blobs = encode_record(record)

    @property
    def num_bytes(self) -> int:
        return len(self.meta) + sum(map(len, self.blobs))


class OpenSegment:
    """A new file that grows at its end. `size` is what is known to be good."""

    def __init__(self, files: Files, path: Path, number: int) -> None:
        self.number = number
        self.size = 0
        # Of its inserts; 0: there are none.
        self.min_key = 0
        self.max_key = 0
        self._files = files
        self._file_id = secrets.randbits(64)
        self._descriptor = files.create(path)

    def append(self, records: Sequence[Packed]) -> list[int]:
        """Where the frame of each begins. After OSError any part of them is in the file: `cut` it off."""
        buffers = [] if self.size else [encode_file_header(self._file_id)]
        offset = self.size + sum(map(len, buffers))
        offsets = []
        for packed in records:
            offsets.append(offset)
            frame = encode_frame(packed.meta, packed.blobs, self._file_id)
            offset += sum(map(len, frame))
            buffers += frame
        self._files.append(self._descriptor, buffers)
        self.size = offset
        for packed in records:
            if isinstance(inserted := packed.record, Inserted):
                self.min_key = min(self.min_key or inserted.first_key, inserted.first_key)
                self.max_key = max(self.max_key, inserted.first_key + inserted.num_keys - 1)
        return offsets

    def cut(self) -> None:
        self._files.truncate(self._descriptor, self.size)

    def fsync(self) -> None:
        self._files.fsync(self._descriptor)

    def close(self) -> Segment:
        """For good, even if the system reports an error: whether the bytes are safe is what fsync says."""
        try:
            self._files.close(self._descriptor)
        except OSError as error:
            log.warning("closing segment %d: %s", self.number, why(error))
        return Segment(self.number, self.size, self.min_key, self.max_key)


class SegmentLog:
    """Appends records. `is_fsync`: each write waits for the disk; otherwise `sync` is called when due."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        next_segment: int,
        segments: Iterable[Segment],
        clock: Clock,
        *,
        is_fsync: bool,
        sync_every_s: float,
        found: Generation | None = None,
        is_read: Callable[[int], bool] = lambda number: False,
        on_deleted: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`segments` are those of earlier processes; they are only ever deleted. `found`: their state."""
        self._set_closed(segments)
        self._directory = directory
        self._files = files
        self._next = next_segment
        self._clock = clock
        self._is_fsync = is_fsync
        self._sync_every_s = sync_every_s
        self._current: OpenSegment | None = None
        self._is_lost = False
        # Those of the state in the current file.
        self._keys = np.empty(0, np.uint64)
        # Inserts that were written since the last fsync that went well; and when the next one is due.
        self._unsynced: list[Packed] = []
        self._unsynced_bytes = 0
        self._sync_at: float | None = None
        # The newest state on the disk, and the one before it.
        self._durable = found
        self._kept: Generation | None = None
        self._may_reclaim = False
        self._is_read = is_read
        self._on_deleted = on_deleted

    @property
    def disk_bytes(self) -> int:
        current = self._current
        return self._closed_bytes + (current.size if current else 0)

    @property
    def is_lost(self) -> bool:
        """The file had to be given up, and not all of it may be on the disk: a new one must begin."""
        return self._is_lost

    @property
    def seconds_to_sync(self) -> float | None:
        """None: everything is on the disk."""
        if self._sync_at is None:
            return None
        is_much = self._unsynced_bytes >= MAX_UNSYNCED_BYTES
        return 0.0 if is_much else max(self._sync_at - self._clock(), 0.0)

    def write(self, records: Sequence[Record]) -> None:
        """All of them. After OSError or SegmentNeeded write them again, with more if you like."""
        state_at = last_state(records)
        if state_at is not None:
            self._begin(records, state_at)
        elif self._current is None:
            raise SegmentNeeded
        else:
            self._append(self._current, [Packed(record) for record in records])

    def sync(self) -> None:
        """Until all that was written is on the disk. After OSError some of it may never be: see `is_lost`."""
        if self._current is None or self._sync_at is None:
            return
        self._fsync(self._current)
        self._mark_durable(self._current)

    def reclaim(self) -> None:
        """Delete the files that neither of the two newest states on the disk needs, nor a sampler now."""
        if not self._may_reclaim or self._kept is None:
            return
        self._may_reclaim = False
        # What the newest one needs and the other does not came after that, and is in no file before it.
        number, keys = self._kept
        kept = []
        for segment in self.closed:
            is_needed = segment.number >= number or holds_any(segment, keys)
            if not is_needed and self._is_read(segment.number):
                # The next time.
                self._may_reclaim = is_needed = True
            if is_needed or not try_to_delete(self._files, self._path(segment.number)):
                kept.append(segment)
            else:
                self._on_deleted(segment.number)
        self._set_closed(kept)

    def close(self) -> None:
        """Does not wait for the disk: `sync` before."""
        if self._current is not None:
            self._abandon(self._current)

    def _append(self, current: OpenSegment, packed: list[Packed]) -> None:
        try:
            offsets = current.append(packed)
        except BaseException:
            self._cut(current)
            raise
        if self._is_fsync:
            self._fsync(current)
        self._written(current, packed, offsets)

    def _begin(self, records: Sequence[Record], state_at: int) -> None:
        state = records[state_at]
        assert isinstance(state, TableState)
        before = [Packed(record) for record in records[:state_at] if not isinstance(record, TableState)]
        if self._current is not None and self._retire(self._current, before):
            before = []
        before = [packed for packed in before if isinstance(packed.record, Inserted)]
        after = [Packed(record) for record in records[state_at + 1 :]]
        packed = [*self._unsynced, *before, Packed(state), *after]
        number, self._next = self._next, self._next + 1
        current = OpenSegment(self._files, self._path(number), number)
        # What a failed fsync lost was acked already: this time there must be no doubt about it.
        must_sync = self._is_fsync or bool(self._unsynced)
        try:
            offsets = current.append(packed)
            if must_sync:
                current.fsync()
                self._files.fsync_directory(self._directory)
        except BaseException:
            leftover = current.close()
            if not try_to_delete(self._files, self._path(number)):
                self._set_closed([*self.closed, leftover])
            raise
        self._unsynced, self._unsynced_bytes, self._sync_at = [], 0, None
        self._current, self._is_lost = current, False
        self._keys = state.keys
        self._written(current, packed, offsets)
        if must_sync:
            self._mark_durable(current)

    def _written(self, current: OpenSegment, packed: list[Packed], offsets: list[int]) -> None:
        for item, offset in zip(packed, offsets, strict=True):
            if isinstance(item.record, Inserted):
                for payload, place in zip(
                    item.record.payloads, blob_offsets(item.meta, item.blobs), strict=True
                ):
                    payload.location = Location(current.number, offset + place)
        inserts = [item for item in packed if isinstance(item.record, Inserted)]
        if self._is_fsync:
            _say_synced(inserts)
        else:
            self._unsynced += inserts
            self._unsynced_bytes += sum(item.num_bytes for item in inserts)
            if self._sync_at is None:
                self._sync_at = self._clock() + self._sync_every_s

    def _mark_durable(self, current: OpenSegment) -> None:
        _say_synced(self._unsynced)
        self._unsynced, self._unsynced_bytes, self._sync_at = [], 0, None
        if self._is_new(current):
            self._kept, self._durable = self._durable, Generation(current.number, self._keys)
            self._may_reclaim = True

    def _is_new(self, current: OpenSegment) -> bool:
        """Nobody knows yet that its state is on the disk."""
        return self._durable is None or self._durable.number != current.number

    def _fsync(self, current: OpenSegment) -> None:
        try:
            current.fsync()
            if self._is_new(current):
                self._files.fsync_directory(self._directory)
        except OSError:
            self._abandon(current)
            raise

    def _cut(self, current: OpenSegment) -> None:
        """After a failed write: back to where the file was good, or give it up."""
        try:
            current.cut()
        except OSError:
            self._abandon(current)

    def _retire(self, current: OpenSegment, last: list[Packed]) -> bool:
        """The end of a file. What cannot be synced is written again in the next one.

        False: the last records are not in it.
        """
        is_in = not last or self._tried(lambda: self._append(current, last))
        self._tried(self.sync)
        if self._current is not None:
            self._abandon(current)
        return is_in

    def _tried(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            log.warning("journal %s: cannot finish a file: %s; written again", self._directory, why(error))
            return False
        return True

    def _abandon(self, current: OpenSegment) -> None:
        self._current, self._is_lost, self._sync_at = None, True, None
        self._set_closed([*self.closed, current.close()])

    def _path(self, number: int) -> Path:
        return self._directory / segment_name(number)

    def _set_closed(self, segments: Iterable[Segment]) -> None:
        self.closed = tuple(segments)
        self._closed_bytes = sum(segment.size for segment in self.closed)


def last_state(records: Sequence[Record]) -> int | None:
    """Where it is among them."""
    places = (i for i in reversed(range(len(records))) if isinstance(records[i], TableState))
    return next(places, None)


def needed_beside(state: Record, before: Iterable[Record]) -> list[Record]:
    """What a state does not know of the records before it: the payloads of items that are there."""
    assert isinstance(state, TableState)
    needed: list[Record] = []
    for record in before:
        if not isinstance(record, Inserted):
            continue
        if _is_any_within(state.keys, record.first_key, record.first_key + record.num_keys - 1):
            needed.append(record)
            continue
        for payload in record.payloads:
            # Whoever waits for that waits in vain.
            payload.is_synced = True
    return needed


def _say_synced(packed: Iterable[Packed]) -> None:
    for item in packed:
        if isinstance(item.record, Inserted):
            for payload in item.record.payloads:
                payload.is_synced = True
