"""The `queue` table: first in, first out, each item handed out once, a full queue makes inserts wait.

Called by `Shard` on the event loop. Both sides wait in order of arrival. Nothing is ever between two hands:
- an insert that waits is stored by whoever makes room, so nobody can take its place;
- a sample that waits is only woken, and takes its items when it runs, so a sampler that is cancelled in the
  meantime has taken nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from services.replay.tables import DRAINING, Insertion, Ledger
from shoal.clients.replay import ITEM_OVERHEAD_BYTES, PrioritiesUpdated, TableStats
from shoal.config.tree import QueueTable as QueueSettings
from shoal.errors import FailedPreconditionError, LimitError, UnavailableError
from shoal.metrics import Clock
from shoal.records import Item


class QueueTable:
    """A FIFO bounded in items and in payload bytes."""

    def __init__(self, name: str, settings: QueueSettings, clock: Clock = time.monotonic) -> None:
        self.ledger = Ledger()
        self._name = name
        self._settings = settings
        self._clock = clock
        self._items: deque[Item] = deque()
        self._num_bytes = 0
        self._next_key = 1
        self._inserters: deque[tuple[Insertion, asyncio.Future[None]]] = deque()
        self._samplers: deque[asyncio.Future[None]] = deque()
        self._inserts_stopped = False
        self._samples_stopped = False

    @property
    def insert_timeout_s(self) -> float:
        return self._settings.insert_timeout_s

    @property
    def sample_timeout_s(self) -> float:
        return self._settings.sample_timeout_s

    @property
    def num_items(self) -> int:
        return len(self._items)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def priority_mass(self) -> float:
        return float(len(self._items))

    async def insert(self, insertion: Insertion, timeout_s: float) -> bool:
        size = len(insertion.payload)
        if size > self._settings.max_bytes:
            raise LimitError(
                f"item of {size} bytes is above max_bytes of table {self._name!r} "
                f"({self._settings.max_bytes}): raise it or shorten the unrolls"
            )
        if self._inserts_stopped:
            raise UnavailableError(DRAINING)
        if not self._inserters and self._has_room(size):
            self._store(insertion)
            return True
        if timeout_s > 0:
            await self._wait_for_room(insertion, timeout_s)
            if insertion.key is not None:
                return True
            if self._inserts_stopped:
                raise UnavailableError(DRAINING)
        self.ledger.num_insert_timeouts += 1
        return False

    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> tuple[Item, ...]:
        if self._samples_stopped:
            raise UnavailableError(DRAINING)
        if self._items and not self._samplers:
            return self._take(num_items, max_bytes)
        if timeout_s > 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._samplers.append(turn)
            started = self._clock()
            try:
                await _done_or_expired(turn, timeout_s)
                if self._items and self._samplers[0] is turn:
                    return self._take(num_items, max_bytes)
            finally:
                self.ledger.sample_wait_s += self._clock() - started
                self._samplers.remove(turn)
                self._wake_sampler()
            if self._samples_stopped:
                raise UnavailableError(DRAINING)
        self.ledger.num_sample_timeouts += 1
        return ()

    def update_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> PrioritiesUpdated:
        raise FailedPreconditionError(f"table {self._name!r} is a queue: its items have no priorities")

    def stats(self) -> TableStats:
        ledger = self.ledger
        return TableStats(
            table=self._name,
            kind=self._settings.kind,
            num_items=len(self._items),
            num_bytes=self._num_bytes,
            max_items=self._settings.max_items,
            max_bytes=self._settings.max_bytes,
            num_inserted=ledger.num_inserted,
            num_sampled_out=ledger.num_sampled_out,
            num_evicted=ledger.num_evicted,
            num_rejected=sum(ledger.num_rejected.values()),
            num_duplicates=ledger.num_duplicates,
            num_insert_timeouts=ledger.num_insert_timeouts,
            insert_wait_s=ledger.insert_wait_s,
            sample_wait_s=ledger.sample_wait_s,
        )

    def stop_inserts(self) -> None:
        self._inserts_stopped = True
        for _, stored in self._inserters:
            _finish(stored)

    def stop_samples(self) -> None:
        self._samples_stopped = True
        for turn in self._samplers:
            _finish(turn)

    async def _wait_for_room(self, insertion: Insertion, timeout_s: float) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (insertion, stored)
        self._inserters.append(waiter)
        started = self._clock()
        try:
            await _done_or_expired(stored, timeout_s)
        finally:
            self.ledger.insert_wait_s += self._clock() - started
            if insertion.key is None:
                self._inserters.remove(waiter)
                # It may have been the large one at the head that kept smaller ones waiting.
                self._admit()

    def _has_room(self, size: int) -> bool:
        return (
            len(self._items) < self._settings.max_items and self._num_bytes + size <= self._settings.max_bytes
        )

    def _store(self, insertion: Insertion) -> None:
        insertion.key = self._next_key
        self._next_key += 1
        self._items.append(Item(insertion.key, insertion.life, insertion.sequence, insertion.payload))
        self._num_bytes += len(insertion.payload)
        self.ledger.num_inserted += 1
        self._wake_sampler()

    def _take(self, num_items: int, max_bytes: int) -> tuple[Item, ...]:
        taken: list[Item] = []
        payload_bytes = 0
        while self._items and len(taken) < num_items:
            size = len(self._items[0].payload)
            if taken and payload_bytes + size + (len(taken) + 1) * ITEM_OVERHEAD_BYTES > max_bytes:
                break
            taken.append(self._items.popleft())
            payload_bytes += size
        self._num_bytes -= payload_bytes
        self.ledger.num_sampled_out += len(taken)
        self.ledger.sampled_bytes += payload_bytes
        self._admit()
        return tuple(taken)

    def _admit(self) -> None:
        """Store what waits for room, in order of arrival, as far as there is room."""
        while self._inserters and not self._inserts_stopped:
            insertion, stored = self._inserters[0]
            if not self._has_room(len(insertion.payload)):
                return
            self._inserters.popleft()
            self._store(insertion)
            _finish(stored)

    def _wake_sampler(self) -> None:
        if self._items and self._samplers:
            _finish(self._samplers[0])


async def _done_or_expired(future: asyncio.Future[None], timeout_s: float) -> None:
    timer = asyncio.get_running_loop().call_later(timeout_s, _finish, future)
    try:
        await future
    finally:
        timer.cancel()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
