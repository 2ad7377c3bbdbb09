"""Snapshots of a `memory` table: every so often, what is in no file yet, and the state.

`start`, `snapshot` and `close` are called on the event loop; files are written in threads. Nothing stops
meanwhile: items are taken from the table a slice at a time, up to the newest one at the beginning; what comes
later is for the next snapshot, and the state leaves it out. A snapshot is there as a whole or not at all: its
files get their names once they are on the disk. A failed one is tried again; the files of the last good one
stay until then.

A state has a file of its own, behind those with the items. The newest two are kept: if the newest one is
damaged, only what happened since the one before is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from services.replay.storage.files import SLOW_S, Files, RealFiles, try_to_delete, why
from services.replay.storage.recovery import TEMPORARY_SUFFIX
from services.replay.storage.segments import OpenSegment, Packed, Segment, holds_any
from services.replay.storage.threads import in_thread
from shoal.config.tables import TableSection
from shoal.journal.events import Inserted, SeenLife, TableState
from shoal.journal.format import Record, record_bytes
from shoal.journal.reader import segment_name
from shoal.metrics import Clock
from shoal.records import ArraySpec
from shoal.rpc.backoff import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

# Taken from the table in one go on the event loop, at most; and how long that may take.
_KEYS_PER_SLICE = 1024
_BYTES_PER_SLICE = 1 << 20
_SLICE_S = 0.01
# Packed and handed to the system in one go.
_BYTES_PER_WRITE = 1 << 20


class SnapshotSource(Protocol):
    """What a snapshot needs of its table."""

    @property
    def num_items(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def oldest_key(self) -> int: ...

    def items_from(self, key: int, below: int | None = None) -> list[Inserted]: ...


class Snapshots:
    """The files of one table."""

    def __init__(
        self,
        directory: Path,
        settings: TableSection,
        table: SnapshotSource,
        save: Callable[[], TableState],
        next_segment: int,
        files: Files | None = None,
        segments: Sequence[Segment] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        """`segments` are the files that recovery found: they hold all that is in the table now.

        Whatever happens to a table must change a counter in its state: otherwise no snapshot is needed.
        """
        # All items with smaller keys that are still there are in the files.
        self.saved_below = save().next_key
        self._directory = directory
        self._every_s = settings.snapshot_every_s
        self._segment_bytes = settings.segment_bytes
        self._table = table
        self._save = save
        # No number is used twice, whatever became of its file.
        self._numbers = itertools.count(next_segment)
        self._files = files or RealFiles()
        self._segments = tuple(segments)
        self._clock = clock
        # Why the last one failed.
        self._failure = ""
        # Since when a thread is at work on the files.
        self._busy_since: float | None = None
        # What the last snapshot was made of, to see whether anything has happened since.
        self._mark: _Mark | None = None
        # A failed snapshot whose files are not deleted yet.
        self._leftover: _Writing | None = None
        # Keys of the next slice, by how long the last one took: appends of one row each take far longer.
        self._slice_keys = _KEYS_PER_SLICE // 4
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def degraded(self) -> str:
        """Why there are no new snapshots, or why they take long; empty if all is well."""
        since = self._busy_since
        took_s = 0.0 if since is None else self._clock() - since
        if not self._failure and took_s > SLOW_S:
            return f"the disk is slow: a write of a snapshot has taken {took_s:.0f} s so far"
        return self._failure

    @property
    def disk_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    async def snapshot(self) -> bool:
        """Bring the files up to date. False: it failed, see `degraded`."""
        async with self._lock:
            try:
                await self._discard_leftover()
                await self._update()
            except Exception as error:
                self._failed(error)
                # Otherwise the next one does.
                with contextlib.suppress(Exception):
                    await self._discard_leftover()
                return False
            return True

    async def close(self) -> None:
        """One last snapshot, after the one that is being written.

        If it is cancelled it ends at once: a disk that hangs is left alone. What is unfinished then is for
        the next start to delete.
        """
        try:
            async with self._lock:
                pass
        finally:
            if self._task is not None:
                self._task.cancel()
        if not await self.snapshot():
            log.error("table %s: what came since the last snapshot is lost", self._directory)

    async def _run(self) -> None:
        backoff = Backoff(min(1.0, self._every_s), self._every_s)
        pause_s = self._every_s
        while True:
            await asyncio.sleep(pause_s)
            if await self.snapshot():
                backoff.reset()
                pause_s = self._every_s
            else:
                pause_s = backoff.next_delay()

    async def _update(self) -> None:
        begun = self._save()
        if (mark := _Mark.of(begun)) == self._mark:
            return
        self._leftover = writing = _Writing(self._files, self._directory, self._numbers, self._segment_bytes)
        state = await self._write(writing, begun)
        self._leftover = None
        if self._failure:
            log.warning("table %s: snapshots are written again", self._directory)
        self._failure = ""
        self.saved_below = begun.next_key
        self._mark = mark
        self._segments += writing.segments
        self._segments = await self._in_thread(self._delete_old, self._segments, state)

    async def _write(self, writing: _Writing, begun: TableState) -> TableState:
        """The items up to then that are in no file yet, and a state that names no others."""
        begin, end = self.saved_below, begun.next_key
        while begin < end:
            # Evictions go on: what is gone needs no place in the files.
            begin = max(begin, min(self._table.oldest_key, end))
            below = min(begin + self._keys_per_slice(), end)
            await self._in_thread(writing.append, self._slice(begin, below))
            begin = below
        state = _with_items_of(begun, self._save())
        await self._in_thread(writing.finish, state)
        return state

    def _slice(self, begin: int, below: int) -> list[Inserted]:
        started = time.perf_counter()
        items = self._table.items_from(begin, below)
        took_s = time.perf_counter() - started
        if took_s > _SLICE_S:
            self._slice_keys = max(self._slice_keys // 2, 1)
        elif took_s < _SLICE_S / 2:
            self._slice_keys = min(self._slice_keys * 2, _KEYS_PER_SLICE)
        return items

    def _keys_per_slice(self) -> int:
        item_bytes = self._table.num_bytes // max(self._table.num_items, 1)
        return max(min(self._slice_keys, _BYTES_PER_SLICE // max(item_bytes, 1)), 1)

    async def _discard_leftover(self) -> None:
        """Or OSError: with those files still there a new snapshot might get mixed up."""
        if self._leftover is not None:
            await self._in_thread(self._leftover.discard)
            self._leftover = None

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        self._busy_since = self._clock()
        try:
            return await in_thread("snapshots", function, *arguments)
        finally:
            self._busy_since = None

    def _failed(self, error: Exception) -> None:
        is_expected = isinstance(error, OSError)
        reason = why(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        if not self._failure:
            log.error(
                "table %s: cannot write a snapshot: %s; the last one stays, tried again",
                self._directory,
                reason,
                exc_info=None if is_expected else error,
            )
        self._failure = reason

    def _delete_old(self, segments: tuple[Segment, ...], state: TableState) -> tuple[Segment, ...]:
        """Delete the files that this state, which is on the disk, does not need; returns the others."""
        # All without inserts are states.
        first_state = [segment.number for segment in segments if not segment.max_key][-2:][0]
        kept = []
        for segment in segments:
            is_needed = holds_any(segment, state.keys) or (
                not segment.max_key and segment.number >= first_state
            )
            path = self._directory / segment_name(segment.number)
            if is_needed or not try_to_delete(self._files, path):
                kept.append(segment)
        return tuple(kept)


@dataclasses.dataclass(frozen=True)
class _Mark:
    """The small part of a state: nothing can happen to a table without changing it."""

    next_key: int
    counters: dict[str, float]
    signature: tuple[ArraySpec, ...]
    lives: tuple[SeenLife, ...]

    @staticmethod
    def of(state: TableState) -> _Mark:
        return _Mark(state.next_key, state.counters, state.signature, state.lives)


class _Writing:
    """The files of one snapshot in the making. Blocking; used by one thread at a time."""

    def __init__(self, files: Files, directory: Path, numbers: Iterator[int], segment_bytes: int) -> None:
        self.segments: tuple[Segment, ...] = ()
        self._files = files
        self._directory = directory
        self._numbers = numbers
        self._segment_bytes = segment_bytes
        # Numbers of all files that were begun.
        self._begun: list[int] = []
        self._current: OpenSegment | None = None

    def append(self, records: Sequence[Record]) -> None:
        start = num_bytes = 0
        for end, record in enumerate(records, 1):
            num_bytes += record_bytes(record)
            if num_bytes >= min(_BYTES_PER_WRITE, self._segment_bytes) or end == len(records):
                self._append([Packed(record) for record in records[start:end]])
                start, num_bytes = end, 0

    def finish(self, state: TableState) -> None:
        """The state in a file of its own; then all of it gets its name, the state when the rest has."""
        self._end_file()
        self._append([Packed(state)])
        self._end_file()
        *inserts, last = self.segments
        for part in filter(None, (inserts, [last])):
            for segment in part:
                self._files.rename(self._temporary(segment.number), self._final(segment.number))
            self._files.fsync_directory(self._directory)

    def discard(self) -> None:
        """Delete what there is of it, the state first. After OSError try again."""
        current, self._current = self._current, None
        if current is not None:
            with contextlib.suppress(OSError):
                current.close()
        for number in reversed(self._begun):
            for path in (self._final(number), self._temporary(number)):
                self._files.delete(path)

    def _append(self, packed: list[Packed]) -> None:
        if self._current is None:
            self._current = self._begin_file(next(self._numbers))
        self._current.append(packed)
        if self._current.size >= self._segment_bytes:
            self._end_file()

    def _begin_file(self, number: int) -> OpenSegment:
        self._begun.append(number)
        # Nobody else writes here: what has this name is of no use to anyone.
        self._files.delete(self._temporary(number))
        return OpenSegment(self._files, self._temporary(number), number)

    def _end_file(self) -> None:
        if self._current is not None:
            self._current.fsync()
            current, self._current = self._current, None
            self.segments += (current.close(),)

    def _temporary(self, number: int) -> Path:
        return self._directory / (segment_name(number) + TEMPORARY_SUFFIX)

    def _final(self, number: int) -> Path:
        return self._directory / segment_name(number)


def _with_items_of(begun: TableState, now: TableState) -> TableState:
    """The state when the snapshot began, with those of its items that are still there.

    All else is of that time: an append whose items are left out must not be known, or its resend would be
    called a repeat, and keys go on behind the last item, or inserts of later files would be taken for known.
    """
    num_kept = int(np.searchsorted(now.keys, np.uint64(begun.next_key)))
    return dataclasses.replace(
        begun,
        keys=now.keys[:num_kept],
        priorities=now.priorities[:num_kept],
        times_sampled=now.times_sampled[:num_kept],
    )
