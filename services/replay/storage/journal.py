"""The journal of one table: every event is in a file before anybody is told that it is safe.

`record`, `has_room` and the rest are called on the event loop; one writer thread takes all that has queued
up, writes it at once (group commit), then answers. When the disk refuses, the journal is `degraded`:
nothing that is there is dropped, no ack goes out, inserts wait, and it tries again until it works.

Where a state stands among the events is decided on the loop, between two callbacks: there the table is
consistent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from services.replay.storage.files import SLOW_S, Files, RealFiles, why
from services.replay.storage.segments import (
    Generation,
    Segment,
    SegmentLog,
    SegmentNeeded,
    last_state,
    needed_beside,
)
from shoal.config.tables import TableSection
from shoal.errors import UnavailableError
from shoal.journal.events import Event, Inserted, PrioritiesSet, Removed, SampledOnce, TableState
from shoal.journal.format import Record, record_bytes
from shoal.metrics import Clock
from shoal.records import ArraySpec
from shoal.rpc.backoff import Backoff

log = logging.getLogger(__name__)

# Recorded and not yet safe: above this inserts wait.
MAX_PENDING_BYTES = 64 << 20
# A segment is at least this many times its state, however small segments should be.
_MIN_STATES_PER_SEGMENT = 4
# Two new segments, to free old ones, are begun early when they free this many: more than in a steady flow,
# in which the older of two states is as old as two segments.
_SEGMENTS_WORTH_A_STATE = 3
# How long the writer waits for a state before it asks again.
_ASK_AGAIN_S = 1.0


class Journal:
    """The `EventSink` of a `wal` or `fsync` table."""

    def __init__(
        self,
        directory: Path,
        settings: TableSection,
        save: Callable[[], TableState],
        next_segment: int,
        files: Files | None = None,
        segments: Sequence[Segment] = (),
        clock: Clock = time.monotonic,
        backoff: Backoff | None = None,
        *,
        found: Generation | None = None,
        signature: Callable[[], tuple[ArraySpec, ...]] = tuple,
        is_read: Callable[[int], bool] = lambda number: False,
        on_deleted: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`segments` are the files that recovery found: they are deleted once their items are gone.

        `found` is the state that it found there. `is_read` says whether a file is in use and has to stay,
        `on_deleted` is told its number; both on the writer thread.
        """
        self.pending_bytes = 0
        self._directory = directory
        self._save = save
        self._signature = signature
        self._segment_bytes = settings.segment_bytes
        self._clock = clock
        self._backoff = backoff or Backoff(0.1, 1.0)
        self._log = SegmentLog(
            directory,
            files or RealFiles(),
            next_segment,
            segments,
            clock,
            is_fsync=settings.durability == "fsync",
            sync_every_s=settings.sync_every_s,
            found=found,
            is_read=is_read,
            on_deleted=on_deleted,
        )
        # Shared with the writer, under the lock of `_wake`.
        self._wake = threading.Condition()
        self._queue: list[Record] = []
        self._futures: list[asyncio.Future[None]] = []
        self._is_state_queued = False
        self._closing = False
        # The loop's own.
        self._failure = ""
        self._failed_at = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Future[None]
        self._room: asyncio.Future[None] | None = None
        self._rotating = False
        self._bytes_since_state = 0
        self._has_removed = False
        self._state_bytes = 0
        # Of the newest state, and of the one before it.
        self._state_oldest_key = 0
        self._kept_oldest_key = 0
        # As in the queue or a file.
        self._recorded_signature: tuple[ArraySpec, ...] = ()
        # All events but inserts since the writer last took any share one future: hardly anybody waits for it.
        self._others: asyncio.Future[None] | None = None
        # Set by the writer for the loop to see.
        self._busy_since: float | None = None
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"journal-{directory.name}", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._rotate()
        self._thread.start()

    def record(self, event: Event) -> asyncio.Future[None]:
        """The future is done once the event is as safe as the durability says. Never cancel it."""
        if isinstance(event, Inserted):
            event = self._signed(event)
        size = record_bytes(event)
        self.pending_bytes += size
        self._bytes_since_state += size
        self._has_removed |= isinstance(event, Removed)
        with self._wake:
            self._queue.append(event)
            if isinstance(event, Inserted) or self._others is None:
                future = self._loop.create_future()
                self._futures.append(future)
                if not isinstance(event, Inserted):
                    self._others = future
            else:
                future = self._others
            self._wake.notify()
        if self._bytes_since_state >= self._bytes_before_state():
            self._rotate_soon()
        return future

    async def has_room(self, timeout_s: float) -> bool:
        """Whether an insert may be recorded now; waits for that."""
        deadline = self._loop.time() + timeout_s
        while self._failure or self.pending_bytes >= MAX_PENDING_BYTES:
            remaining = deadline - self._loop.time()
            if remaining <= 0:
                return False
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.wait((self._room,), timeout=remaining)
        return True

    @property
    def degraded(self) -> str:
        """Why the disk takes no writes, or takes long; empty if all is well."""
        since = self._busy_since
        took_s = 0.0 if since is None else self._clock() - since
        if not self._failure and took_s > SLOW_S:
            return f"the disk is slow: a write has taken {took_s:.0f} s so far"
        return self._failure

    @property
    def disk_bytes(self) -> int:
        return self._log.disk_bytes

    def reclaim(self, oldest_key: int) -> None:
        """All items below this key are gone. Files are deleted once a state without them is on the disk.

        That, and another one, comes with the next segments; one is begun now if it frees a lot.
        """
        gone = [s.size for s in self._log.closed if self._kept_oldest_key <= s.max_key < oldest_key]
        worth_bytes = _SEGMENTS_WORTH_A_STATE * max(self._segment_bytes, self._state_bytes)
        if sum(gone) >= worth_bytes and not self._failure:
            self._rotate_soon()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left and the state. What cannot be written in time is given up, never acked."""
        if self._closing:
            return
        self._rotate()
        with self._wake:
            self._closing = True
            self._wake.notify()
        try:
            await asyncio.wait((self._stopped,), timeout=timeout_s)
        finally:
            self._give_up.set()

    # On the event loop, for the writer.

    def _signed(self, event: Inserted) -> Inserted:
        """With the table's signature if that is new."""
        specs = self._signature()
        if not specs or specs == self._recorded_signature:
            return event
        self._recorded_signature = specs
        # In two places, so that it is known whichever of the two gets damaged.
        self._rotate_soon()
        return dataclasses.replace(event, signature=specs)

    def _bytes_before_state(self) -> int:
        # While nothing is written, a state now and then replaces all events before it but the inserts.
        is_behind = self._is_behind()
        limit = min(self._segment_bytes, MAX_PENDING_BYTES // 2) if is_behind else self._segment_bytes
        return max(limit, _MIN_STATES_PER_SEGMENT * self._state_bytes)

    def _is_behind(self) -> bool:
        # Half, as so much again may come before the next state.
        return bool(self._failure) or self.pending_bytes >= MAX_PENDING_BYTES // 2

    def _rotate_soon(self) -> None:
        # Not at once: whoever records is in the middle of changing the table.
        if not self._rotating:
            self._rotating = True
            self._loop.call_soon(self._rotate)

    def _rotate(self) -> None:
        self._rotating = False
        state = self._save()
        self._bytes_since_state = 0
        self._has_removed = False
        self._state_bytes = record_bytes(state)
        self._recorded_signature = state.signature
        oldest_key = int(state.keys[0]) if state.keys.size else state.next_key
        if not self._failure:
            # Else the one before is not on the disk, and never will be.
            self._kept_oldest_key = self._state_oldest_key
        self._state_oldest_key = oldest_key
        # What it covers is written all the same while the writer keeps up: the state may get damaged.
        covered = (Removed, SampledOnce, PrioritiesSet, TableState) if self._is_behind() else TableState
        with self._wake:
            dropped = [record for record in self._queue if isinstance(record, covered)]
            self._queue = [record for record in self._queue if not isinstance(record, covered)]
            self._queue.append(state)
            self._is_state_queued = True
            self._wake.notify()
        self._on_dropped(_num_bytes(dropped))

    def _on_written(self, futures: list[asyncio.Future[None]], num_bytes: int) -> None:
        self.pending_bytes -= num_bytes
        if self._failure:
            took_s = self._clock() - self._failed_at
            log.warning("journal %s: writes again after %.1f s", self._directory, took_s)
            self._failure = ""
        for future in futures:
            if not future.done():
                future.set_result(None)
        self._make_room()

    def _on_failed(self, error: Exception) -> None:
        reason = why(error) if isinstance(error, OSError) else f"internal error, see the log: {error!r}"
        if (not self._failure or self._has_removed) and not self._closing:
            # What is gone may be all that fills the disk: files are freed by states that do without it. And
            # it ends the file, which syncs what was acked before.
            self._rotate_soon()
        if not self._failure:
            self._failed_at = self._clock()
            if not isinstance(error, OSError):
                log.error("journal %s: a record cannot be written", self._directory, exc_info=error)
            log.error(
                "journal %s: cannot write: %s; acks are withheld and inserts wait until it can",
                self._directory,
                reason,
            )
        self._failure = reason

    def _on_dropped(self, num_bytes: int) -> None:
        self.pending_bytes -= num_bytes

    def _on_stopped(self, futures: list[asyncio.Future[None]], num_lost: int) -> None:
        if num_lost:
            log.error(
                "journal %s: %d records were not written before the end; no insert among them was acked",
                self._directory,
                num_lost,
            )
        for future in futures:
            if not future.done():
                future.set_exception(UnavailableError(f"journal {self._directory} is closed"))
                # Nobody may be waiting any more; that is no fault to report.
                future.exception()
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    # On the writer thread.

    def _run(self) -> None:
        records: list[Record] = []
        futures: list[asyncio.Future[None]] = []
        while not self._give_up.is_set():
            is_closing = self._take(records, futures)
            try:
                self._write(records, futures)
                if is_closing or self._log.seconds_to_sync == 0.0:
                    self._sync()
            except SegmentNeeded:
                self._await_state()
            except Exception as error:
                self._failed(error, records)
                self._give_up.wait(self._backoff.next_delay())
            else:
                self._backoff.reset()
                self._reclaim()
                if is_closing:
                    break
        self._take(records, futures)
        self._log.close()
        self._tell(self._on_stopped, futures, len(records))

    def _take(self, records: list[Record], futures: list[asyncio.Future[None]]) -> bool:
        """Add what has queued up, if there is nothing to do wait for it. Returns whether this is the end."""
        with self._wake:
            if not records and not self._log.is_lost:
                self._wake.wait_for(lambda: self._queue or self._closing, self._log.seconds_to_sync)
            records += self._queue
            futures += self._futures
            self._queue, self._futures, self._others = [], [], None
            self._is_state_queued = False
            return self._closing

    def _write(self, records: list[Record], futures: list[asyncio.Future[None]]) -> None:
        if not records and not self._log.is_lost:
            return
        with self._busy():
            self._log.write(records)
        self._tell(self._on_written, futures.copy(), _num_bytes(records))
        records.clear()
        futures.clear()

    def _sync(self) -> None:
        with self._busy():
            self._log.sync()

    def _reclaim(self) -> None:
        try:
            with self._busy():
                self._log.reclaim()
        except Exception:
            # Files that stay take room and do no other harm: no reason to withhold acks.
            log.exception("journal %s: cannot delete old files", self._directory)

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        self._busy_since = self._clock()
        try:
            yield
        finally:
            self._busy_since = None

    def _await_state(self) -> None:
        self._tell(self._rotate_soon)
        with self._wake:
            self._wake.wait_for(lambda: self._is_state_queued, _ASK_AGAIN_S)

    def _failed(self, error: Exception, records: list[Record]) -> None:
        self._tell(self._on_failed, error)
        if (state_at := last_state(records)) is not None:
            # Appends that are left out are acked with the state, which knows them.
            needed = needed_beside(records[state_at], records[:state_at])
            self._tell(self._on_dropped, _num_bytes(records[:state_at]) - _num_bytes(needed))
            records[:state_at] = needed

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is gone, and with it everybody who waits.
            self._give_up.set()


def _num_bytes(records: Sequence[Record]) -> int:
    """As counted in `pending_bytes`; a state is not: it does not make inserts wait."""
    return sum(record_bytes(record) for record in records if not isinstance(record, TableState))
