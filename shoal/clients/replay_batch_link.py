"""One shard as a `BatchSampler` sees it: its requests in order, its newest state, and its priority updates.

Made by `BatchSampler`, one per shard, on its event loop. Priorities go by calls of their own, one at a time
and beside the stream of samples; what comes in while a call is under way is merged into the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.clients.replay_draw import PendingBatch, Source, masses_of
from shoal.clients.replay_shard import PrioritiesUpdated, ReplayShardClient, Sampled, SampleStream
from shoal.errors import ShoalError, UnavailableError
from shoal.rpc.addresses import Address
from shoal.rpc.backoff import Backoff
from shoal.sharding import Link

# How long a shard keeps a request that it cannot serve yet before it says so; and if others may have what it
# has not.
SAMPLE_TIMEOUT_S = 2.0
SHORT_TIMEOUT_S = 0.02
# A shard that says nothing at all is given up. What its answers weigh comes on top.
SILENT_AFTER_S = 15.0
# Keys in one call, and keys that wait for a shard that is slow to take them.
MAX_KEYS_PER_CALL = 1 << 16
MAX_KEYS_WAITING = 1 << 20

# No two connections of this process have the same number: a shard that leaves and comes back under the same
# address has a new link, and perhaps other items by the same keys.
_SESSIONS = itertools.count()


@dataclass(frozen=True)
class _Request:
    # None: only the shard's state is wanted.
    batch: PendingBatch | None
    num_items: int
    timeout_s: float


class Owner(Protocol):
    """What a link tells its sampler."""

    def on_answer(
        self, link: BatchLink, batch: PendingBatch | None, asked: int, sampled: Sampled
    ) -> None: ...

    def on_lost(self, link: BatchLink, batches: list[tuple[PendingBatch, int]]) -> None:
        """The connection is over; these questions were not answered."""
        ...

    def on_updated(self, done: PrioritiesUpdated) -> None: ...

    def on_updates_dropped(self, num_keys: int) -> None: ...

    def on_failure(self, error: BaseException) -> None: ...


class BatchLink(Link):
    """Samples of one table of one shard, and the priorities that go back."""

    def __init__(
        self, address: Address, client: ReplayShardClient, table: str, max_backoff_s: float, owner: Owner
    ) -> None:
        super().__init__(address)
        self.source = Source(address, next(_SESSIONS))
        # As of its newest answer.
        self.mass = 0.0
        self.num_items = 0
        self.num_bytes = 0
        # Why it is away, if it is; whether it has been reached or found away at all.
        self.problem = ""
        self.tried = False
        self._bytes_per_item = 0.0
        self._client = client
        self._table = table
        self._max_backoff_s = max_backoff_s
        self._owner = owner
        self._queue: deque[_Request] = deque()
        self._asked: deque[_Request] = deque()
        self._wake = asyncio.Event()
        self._updates: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_waiting = 0
        self._updates_wake = asyncio.Event()

    @property
    def bytes_due(self) -> int:
        return int(self._asked[0].num_items * self._bytes_per_item) if self._asked else 0

    @property
    def num_waiting(self) -> int:
        """Priorities on their way."""
        return self._num_waiting

    def describe(self) -> str:
        """What is known of this shard, for whoever waits."""
        if not self.live:
            return f"shard {self.address.target} is away ({self.problem or 'not reached yet'})"
        if not self.mass and self.num_bytes:
            return (
                f"shard {self.address.target} holds {self.num_bytes} bytes and nothing that can be sampled "
                "yet (fewer items than the table's min_items, or no sequence that is complete)"
            )
        if not self.mass:
            return f"shard {self.address.target} has nothing to sample"
        asked = sum(request.num_items for request in self._asked)
        waits = f"lets {asked} samples wait" if asked else "has answered"
        return f"shard {self.address.target} {waits}, of {self.num_items} items that can be sampled"

    def ask(self, batch: PendingBatch | None, num_items: int, timeout_s: float = SAMPLE_TIMEOUT_S) -> None:
        """Send a request, after those before."""
        self._queue.append(_Request(batch, num_items, timeout_s))
        self.expect()
        self._wake.set()

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Send new priorities for items of this connection, soon."""
        self._updates.append((keys, priorities))
        self._num_waiting += len(keys)
        while self._num_waiting > MAX_KEYS_WAITING and len(self._updates) > 1:
            dropped, _ = self._updates.pop(0)
            self._settle(len(dropped))
            self._owner.on_updates_dropped(len(dropped))
        self._updates_wake.set()

    def on_silent(self) -> None:
        self.break_off(f"no answer for {SILENT_AFTER_S} s")

    async def session(self) -> None:
        updating: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(SILENT_AFTER_S):
                stream = await self._client.open_sample(self._table)
            try:
                self.source = Source(self.address, next(_SESSIONS))
                self.ask(None, 0)
                updating = self._loop.create_task(self._send_updates())
                await self.both(self._receive(stream), self._request(stream))
            finally:
                await stream.close()
        except TimeoutError:
            self.problem = f"no connection within {SILENT_AFTER_S} s"
            raise UnavailableError(self.problem) from None
        except UnavailableError as error:
            self.problem = str(error)
            raise
        finally:
            if updating is not None:
                updating.cancel()
            self._forget()

    async def close(self) -> None:
        await self._client.close()

    async def _request(self, stream: SampleStream) -> None:
        try:
            while True:
                while self._queue:
                    request = self._queue.popleft()
                    # First: the answer may be there before the write returns.
                    self._asked.append(request)
                    await stream.request(request.num_items, request.timeout_s)
                self._wake.clear()
                await self._wake.wait()
        except ShoalError:
            # The receiver learns the reason, after the answers that are still on their way.
            return

    async def _receive(self, stream: SampleStream) -> None:
        while True:
            sampled = await stream.receive()
            if not self._asked:
                raise UnavailableError("it answered what it was not asked")
            # It stays asked for if this is no answer.
            _check(sampled, self._asked[0].num_items)
            request = self._asked.popleft()
            self.heard(more=bool(self._asked or self._queue))
            self.mass, self.num_items = sampled.priority_mass, sampled.num_items
            self.num_bytes = sampled.num_bytes
            self._bytes_per_item = sampled.num_bytes / max(sampled.num_items, 1)
            if sampled.items:
                # Sequences that overlap weigh more than their part of the table.
                self._bytes_per_item = max(self._bytes_per_item, sampled.items[0].num_bytes)
            self.tried = True
            self.established()
            self._owner.on_answer(self, request.batch, request.num_items, sampled)

    async def _send_updates(self) -> None:
        backoff = Backoff(max_s=self._max_backoff_s)
        try:
            while True:
                await self._updates_wake.wait()
                keys, priorities = self._merged()
                try:
                    done = await self._client.update_priorities(self._table, keys, priorities)
                except UnavailableError:
                    # Older than what has come since, so it goes first: the newest counts.
                    self._updates.insert(0, (keys, priorities))
                    await asyncio.sleep(backoff.next_delay())
                    continue
                backoff.reset()
                if not self._updates:
                    self._updates_wake.clear()
                self._settle(len(keys))
                self._owner.on_updated(done)
        except Exception as error:
            self._owner.on_failure(error)

    def _merged(self) -> tuple[np.ndarray, np.ndarray]:
        """The oldest that wait, at most one call's worth; of several for one key the last."""
        taken = 1
        total = len(self._updates[0][0])
        while taken < len(self._updates) and total + len(self._updates[taken][0]) <= MAX_KEYS_PER_CALL:
            total += len(self._updates[taken][0])
            taken += 1
        keys = np.concatenate([keys for keys, _ in self._updates[:taken]])
        priorities = np.concatenate([priorities for _, priorities in self._updates[:taken]])
        del self._updates[:taken]
        unique, from_end = np.unique(keys[::-1], return_index=True)
        self._settle(total - len(unique))
        return unique, priorities[::-1][from_end]

    def _settle(self, num_keys: int) -> None:
        self._num_waiting -= num_keys

    def _forget(self) -> None:
        """The connection is over, and everything that belonged to it."""
        self.tried = True
        self.mass, self.num_items, self.num_bytes = 0.0, 0, 0
        lost = [(request.batch, request.num_items) for request in (*self._asked, *self._queue)]
        self._asked.clear()
        self._queue.clear()
        self.heard(more=False)
        num_dropped, self._num_waiting = self._num_waiting, 0
        self._updates.clear()
        self._updates_wake.clear()
        if num_dropped:
            self._owner.on_updates_dropped(num_dropped)
        self._owner.on_lost(self, [(batch, asked) for batch, asked in lost if batch is not None])


def _check(sampled: Sampled, asked: int) -> None:
    """What would make nonsense of the weights must not get into a batch."""
    mass = sampled.priority_mass
    masses = masses_of(sampled)
    if len(masses) > asked or not math.isfinite(mass) or mass < 0 or not (masses > 0).all():
        raise UnavailableError(
            f"it answered a request for {asked} items with masses of {masses}, of {mass} in all"
        )
