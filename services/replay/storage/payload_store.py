"""Which payloads of a table are in memory, and reading back those that are not.

All of it is called on the event loop, but for `is_read` and `segment_deleted`; the reading happens in a few
threads. The newest payloads stay in memory, up to a limit; older ones leave it as soon as the journal has
them on the disk. What is read back is checked against its CRC32C: bytes that do not match are never handed
out. What cannot be read for a reason that may go away is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from services.replay.object_column import ObjectColumn
from services.replay.storage.files import SLOW_S, Files, RealFiles, why
from shoal.journal.events import Location, StoredPayload
from shoal.journal.reader import segment_name
from shoal.metrics import Clock

log = logging.getLogger(__name__)

_NUM_THREADS = 4
_MAX_OPEN_FILES = 64
# Between two attempts to read what cannot be read now.
_READ_AGAIN_S = 0.1


class Place(NamedTuple):
    """Where in the segment files the bytes of a payload are, and what they must be."""

    segment: int
    offset: int
    size: int
    crc32c: int


class Found(NamedTuple):
    """Payloads that are there: their bytes, and where to read those that are None."""

    data: list[bytes | None]
    places: dict[int, Place]


class PayloadStore:
    """The payloads of one table by key; those that are there are of one span of at most `max_items` keys.

    They are in columns by slot (key % max_items), not in objects: those would be millions for the garbage
    collector to look at. A `StoredPayload` is only kept until the journal knows where its bytes stay.
    """

    def __init__(
        self,
        max_items: int,
        max_ram_bytes: int | None,
        files: Files | None,
        directory: Path | None,
        clock: Clock = time.monotonic,
    ) -> None:
        """`max_ram_bytes` None: all of them stay in memory."""
        self.ram_bytes = 0
        self._max_items = max_items
        self._max_ram_bytes = max_ram_bytes
        # None where it is not in memory. Zeros for the rest: their memory is only used once it is written.
        self._data: ObjectColumn[bytes | None] = ObjectColumn(max_items)
        self._sizes = np.zeros(max_items, np.uint32)
        self._crcs = np.zeros(max_items, np.uint32)
        # 0: not on the disk yet. Of what always stays in memory nobody needs to know it.
        self._segments = np.zeros(max_items, np.int64)
        self._offsets = np.zeros(max_items, np.int64)
        # What the journal has not written yet, or may still write again to another place.
        self._unsynced: deque[tuple[int, StoredPayload]] = deque()
        # All with smaller keys are out of memory.
        self._first_in_ram = 0
        self._newest_key = 0
        self._reader = None if directory is None else _Reader(files or RealFiles(), directory)
        self._pool: ThreadPoolExecutor | None = None
        # What finds no thread waits here, where it can be cancelled, and takes no memory after that.
        self._threads = asyncio.Semaphore(_NUM_THREADS)
        self._clock = clock
        # When the reads that are under way began.
        self._reading: dict[asyncio.Future[list[bytes | None]], float] = {}
        # How many fetches need a segment.
        self._pins: Counter[int] = Counter()

    @property
    def degraded(self) -> str:
        """Why payloads cannot be read, or that it takes long; empty if all is well."""
        if self._reader is not None and (failure := self._reader.failure):
            return failure
        took_s = self._clock() - min(self._reading.values(), default=self._clock())
        return f"the disk is slow: a read has taken {took_s:.0f} s so far" if took_s > SLOW_S else ""

    def add(self, key: int, payload: StoredPayload) -> None:
        """A payload that is newer than all others; it may have no data already."""
        slot = key % self._max_items
        self._newest_key = key
        self._data[slot] = payload.data
        self._sizes[slot] = payload.size
        self._crcs[slot] = payload.crc32c
        if payload.data is not None:
            self.ram_bytes += payload.size
        self._segments[slot] = 0
        if payload.location is not None:
            # Found in a file that is not written any more.
            self._place(key, payload.location)
        elif self._max_ram_bytes is not None:
            self._unsynced.append((key, payload))
        self._drop_oldest()

    def forget(self, keys: np.ndarray) -> None:
        """Their items, which are there, are gone. Whoever is fetching them still gets them."""
        slots = self._slots(keys)
        sizes = self._sizes[slots].tolist()
        for slot, size in zip(slots.tolist(), sizes, strict=True):
            if self._data[slot] is not None:
                self._data[slot] = None
                self.ram_bytes -= size

    def sizes(self, keys: np.ndarray) -> np.ndarray:
        """Of payloads that are there."""
        sizes: np.ndarray = self._sizes[self._slots(keys)]
        return sizes

    def get(self, key: int) -> StoredPayload:
        """One that is there."""
        slot = key % self._max_items
        place = self._place_of(slot)
        location = Location(place.segment, place.offset) if place.segment else None
        return StoredPayload(place.size, place.crc32c, self._data[slot], location)

    def find(self, keys: np.ndarray) -> Found:
        """For `fetch`. The items are there now; they may go before that."""
        # Not only when one is added: what was not on the disk then would stay for as long as none comes.
        self._drop_oldest()
        slots = self._slots(keys)
        data = self._data.take(slots)
        if None not in data:
            return Found(data, {})
        missing = [i for i, there in enumerate(data) if there is None]
        return Found(data, {i: self._place_of(int(slots[i])) for i in missing})

    async def fetch(self, found: Found) -> list[bytes | None]:
        """The bytes of what `find` returned; None: damaged, or its file is gone. Cancel at will.

        Takes as long as the files cannot be read.
        """
        if not found.places:
            return found.data
        segments = {place.segment for place in found.places.values()}
        self._pins.update(segments)
        try:
            read = await self._read(sorted(set(found.places.values())))
        finally:
            self._pins -= Counter(segments)
        data = found.data.copy()
        for i, place in found.places.items():
            data[i] = read.get(place)
        return data

    def is_read(self, number: int) -> bool:
        """A segment is being read, and must not be deleted. From any thread."""
        return number in self._pins

    def segment_deleted(self, number: int) -> None:
        """Lets go of the file, or its disk space stays taken. From any thread."""
        if self._reader is not None:
            self._reader.forget(number)

    def close(self) -> None:
        """Does not wait for what is being read."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _read(self, places: list[Place]) -> dict[Place, bytes | None]:
        """Places are in the order of the files, so that the disk reads forwards."""
        if self._reader is None:
            return {}
        size = -(-len(places) // _NUM_THREADS)
        parts = [places[start : start + size] for start in range(0, len(places), size)]
        answers = await asyncio.gather(*(self._read_part(self._reader, part) for part in parts))
        return dict(zip(places, itertools.chain.from_iterable(answers), strict=True))

    async def _read_part(self, reader: _Reader, places: list[Place]) -> list[bytes | None]:
        while True:
            try:
                return await self._try_to_read(reader, places)
            except OSError:
                await asyncio.sleep(_READ_AGAIN_S)

    async def _try_to_read(self, reader: _Reader, places: list[Place]) -> list[bytes | None]:
        await self._threads.acquire()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="payloads")
        reading = asyncio.get_running_loop().run_in_executor(self._pool, reader.read, places)
        self._reading[reading] = self._clock()
        reading.add_done_callback(self._has_read)
        # Its thread is taken until it has read, whoever still waits for that.
        return await asyncio.shield(reading)

    def _has_read(self, reading: asyncio.Future[list[bytes | None]]) -> None:
        del self._reading[reading]
        self._threads.release()
        # Whoever waited may have gone; the reader has told of it.
        if not reading.cancelled():
            reading.exception()

    def _drop_oldest(self) -> None:
        if self._max_ram_bytes is None:
            return
        self._follow_journal()
        while self.ram_bytes > self._max_ram_bytes:
            key = max(self._first_in_ram, self._newest_key - self._max_items + 1)
            slot = key % self._max_items
            if self._data[slot] is not None:
                if not self._segments[slot]:
                    # The journal is behind; what it has not synced cannot be dropped.
                    return
                self._data[slot] = None
                self.ram_bytes -= int(self._sizes[slot])
            self._first_in_ram = key + 1

    def _follow_journal(self) -> None:
        """It syncs in the order of the keys."""
        while self._unsynced and self._unsynced[0][1].is_synced:
            key, payload = self._unsynced.popleft()
            self._place(key, payload.location)

    def _place(self, key: int, location: Location | None) -> None:
        slot = key % self._max_items
        # Otherwise its slot was taken over by a newer one.
        if location is not None and key > self._newest_key - self._max_items:
            self._segments[slot] = location.segment
            self._offsets[slot] = location.offset

    def _place_of(self, slot: int) -> Place:
        return Place(
            int(self._segments[slot]),
            int(self._offsets[slot]),
            int(self._sizes[slot]),
            int(self._crcs[slot]),
        )

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return (keys % np.uint64(self._max_items)).astype(np.intp)


class _Reader:
    """Reads segment files, from several threads. They stay open, so that one may be deleted meanwhile."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        # Never held while the disk is waited for.
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._deleted: set[int] = set()
        # Why a segment could not be read the last time.
        self._failures: dict[int, str] = {}

    @property
    def failure(self) -> str:
        """Of one of those that cannot be read; empty if there are none."""
        with self._lock:
            return next(iter(self._failures.values()), "")

    def forget(self, number: int) -> None:
        """Of a file that was deleted. Closed here, or by the last thread that reads it."""
        with self._lock:
            self._deleted.add(number)
            self._failures.pop(number, None)
            file = self._open.pop(number, None)
        del file

    def read(self, places: Sequence[Place]) -> list[bytes | None]:
        """None: damaged. Raises OSError for what says nothing about the bytes: try again."""
        return [self._read_one(place) for place in places]

    def _read_one(self, place: Place) -> bytes | None:
        path = self._directory / segment_name(place.segment)
        try:
            data = self._file(place.segment, path).read(place.size, place.offset)
        except OSError as error:
            if not _is_damage(error):
                self._failed(place.segment, path, error)
                raise
            log.error("cannot read %d bytes at %d of %s: %s", place.size, place.offset, path, why(error))
            data = None
        if self._failures:
            self._worked(place.segment)
        if data is not None and (len(data) != place.size or crc32c(data) != place.crc32c):
            log.error("%s is damaged: %d bytes at %d", path, place.size, place.offset)
            return None
        return data

    def _failed(self, number: int, path: Path, error: OSError) -> None:
        reason = f"cannot read {path}: {error.strerror or error}"
        with self._lock:
            if number in self._deleted:
                # Nobody waits for it any more, and no later read would take the failure back.
                return
            is_first = not self._failures
            self._failures[number] = reason
            # To be opened anew: a descriptor may be the very thing that is out of order.
            file = self._open.pop(number, None)
        del file
        if is_first:
            log.error("%s; nothing is dropped, and it is tried again until it can", reason)

    def _worked(self, number: int) -> None:
        with self._lock:
            was_last = self._failures.pop(number, None) is not None and not self._failures
        if was_last:
            log.warning("%s can be read again", self._directory)

    def _file(self, number: int, path: Path) -> _OpenFile:
        with self._lock:
            if (file := self._open.get(number)) is not None:
                self._open.move_to_end(number)
                return file
        opened = _OpenFile(self._files, path)
        surplus = None
        with self._lock:
            if number not in self._deleted:
                # Unless another thread was quicker.
                opened = self._open.setdefault(number, opened)
                if len(self._open) > _MAX_OPEN_FILES:
                    _, surplus = self._open.popitem(last=False)
        del surplus
        return opened


def _is_damage(error: OSError) -> bool:
    """The bytes are lost. All else, such as too many open files, may be over the next time."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.EIO


class _OpenFile:
    """Closed when nobody holds it any more: another thread may be reading while it leaves the list."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._descriptor = files.open(path)

    def read(self, size: int, offset: int) -> bytes:
        return self._files.pread(self._descriptor, size, offset)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            with contextlib.suppress(OSError):
                self._files.close(self._descriptor)
