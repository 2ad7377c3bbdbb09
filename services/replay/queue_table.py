"""The `queue` table: first in, first out, each item handed out once, a full queue makes inserts wait.

Called by `Shard` and by recovery, on the event loop. Who waits for whom is in `Gate`; here is what is stored.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from services.replay.arrivals import Arrivals
from services.replay.gate import Gate
from services.replay.tables import EventSink, Insertion, Ledger, table_stats
from shoal.clients.replay_shard import ITEM_OVERHEAD_BYTES, PrioritiesUpdated, Sampled, TableStats
from shoal.config.tables import QueueTable as QueueSettings
from shoal.errors import FailedPreconditionError, LimitError
from shoal.journal.events import Event, Inserted, Removed, StoredPayload, TableState
from shoal.metrics import Clock
from shoal.records import Item, Life


@dataclass(frozen=True, slots=True)
class _Entry:
    key: int
    life: Life
    sequence: int
    payload: StoredPayload

    def item(self) -> Item:
        assert self.payload.data is not None, "a queue keeps its payloads in memory"
        return Item(self.key, self.life, self.sequence, (self.payload.data,))


class QueueTable:
    """A FIFO bounded in items and in payload bytes."""

    def __init__(
        self, name: str, settings: QueueSettings, sink: EventSink, clock: Clock = time.monotonic
    ) -> None:
        self.ledger = Ledger()
        self.arrivals = Arrivals()
        self._name = name
        self._settings = settings
        self._sink = sink
        # By key: the oldest first, and any of them at once.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._num_bytes = 0
        self._next_key = 1
        self._gate = Gate(self.ledger, clock, self._has_room, self._store, lambda: bool(self._entries))

    @property
    def insert_timeout_s(self) -> float:
        return self._settings.insert_timeout_s

    @property
    def sample_timeout_s(self) -> float:
        return self._settings.sample_timeout_s

    @property
    def num_items(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def oldest_key(self) -> int:
        return next(iter(self._entries), self._next_key)

    def check(self, insertion: Insertion) -> None:
        num_items, num_bytes = len(insertion.payloads), insertion.num_bytes
        if num_items > self._settings.max_items:
            raise LimitError(
                f"append of {num_items} items is above max_items of table {self._name!r} "
                f"({self._settings.max_items}): raise it or append fewer at once"
            )
        if num_bytes > self._settings.max_bytes:
            raise LimitError(
                f"append of {num_bytes} bytes is above max_bytes of table {self._name!r} "
                f"({self._settings.max_bytes}): raise it or shorten the unrolls"
            )

    async def insert(self, insertion: Insertion, timeout_s: float) -> bool:
        return await self._gate.insert(insertion, timeout_s)

    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> Sampled:
        if num_items == 0:
            return self._sampled()
        taken = await self._gate.sample(lambda: self._take(num_items, max_bytes), timeout_s)
        return taken or self._sampled()

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> PrioritiesUpdated:
        raise FailedPreconditionError(f"table {self._name!r} is a queue: its items have no priorities")

    def stats(self) -> TableStats:
        return table_stats(
            self._name,
            self._settings,
            self.ledger,
            num_items=len(self._entries),
            num_bytes=self._num_bytes,
            ram_bytes=self._num_bytes,
            priority_mass=float(len(self._entries)),
        )

    def stop_inserts(self) -> None:
        self._gate.stop_inserts()

    def stop_samples(self) -> None:
        self._gate.stop_samples()

    def save(self) -> TableState:
        return TableState(
            kind=self._settings.kind,
            signature=(),
            next_key=self._next_key,
            keys=np.fromiter(self._entries, np.uint64, len(self._entries)),
            priorities=np.zeros(0),
            times_sampled=np.zeros(0, np.uint32),
            counters=self.ledger.counters(),
        )

    def items_from(self, key: int, below: int | None = None) -> list[Inserted]:
        keys = range(max(key, self.oldest_key), min(below or self._next_key, self._next_key))
        entries = filter(None, map(self._entries.get, keys))
        return [
            Inserted(entry.key, 1, entry.life, entry.sequence, (entry.payload,), np.zeros(0))
            for entry in entries
        ]

    def restore(self, state: TableState, items: list[Inserted]) -> None:
        found = {entry.key: entry for item in items for entry in _entries(item)}
        self._append([found[key] for key in state.keys.tolist() if key in found])
        self._next_key = state.next_key
        self.ledger.restore(state.counters, num_items=len(self._entries))
        self.ledger.num_corrupt += len(state.keys) - len(self._entries)

    def apply(self, event: Event) -> None:
        if isinstance(event, Inserted) and event.first_key >= self._next_key:
            # Keys in between belong to events that are damaged: what they inserted is gone.
            lost = event.first_key - self._next_key
            self._append(_entries(event))
            self._next_key = event.first_key + event.num_keys
            self.ledger.num_inserted += lost + event.num_keys
            self.ledger.num_evicted += lost
        elif isinstance(event, Removed) and len(event.keys):
            last = int(event.keys.max())
            while self._entries and self.oldest_key <= last:
                self._pop(1)

    def _sampled(self, items: tuple[Item, ...] = ()) -> Sampled:
        """With the table as it is now."""
        return Sampled(items, None, len(self._entries), self._num_bytes, float(len(self._entries)))

    def _has_room(self, insertion: Insertion) -> bool:
        return (
            len(self._entries) + len(insertion.payloads) <= self._settings.max_items
            and self._num_bytes + insertion.num_bytes <= self._settings.max_bytes
        )

    def _store(self, insertion: Insertion) -> None:
        payloads = tuple(StoredPayload.of(data) for data in insertion.payloads)
        event = Inserted(
            self._next_key, len(payloads), insertion.life, insertion.sequence, payloads, np.zeros(0)
        )
        self._append(_entries(event))
        self._next_key += event.num_keys
        self.ledger.num_inserted += event.num_keys
        insertion.first_key = event.first_key
        insertion.durable = self._sink.record(event)

    def _take(self, num_items: int, max_bytes: int) -> Sampled:
        taken: list[Item] = []
        num_bytes = 0
        for entry in self._entries.values():
            num_bytes += entry.payload.size + ITEM_OVERHEAD_BYTES
            if len(taken) == num_items or (taken and num_bytes > max_bytes):
                break
            taken.append(entry.item())
        sampled = self._sampled(tuple(taken))
        self.ledger.sampled_bytes += sum(item.num_bytes for item in taken)
        self._pop(len(taken))
        self._sink.record(Removed(np.array([item.key for item in taken], np.uint64)))
        return sampled

    def _append(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            self._entries[entry.key] = entry
            self._num_bytes += entry.payload.size

    def _pop(self, num_entries: int) -> None:
        for _ in range(num_entries):
            self._num_bytes -= self._entries.popitem(last=False)[1].payload.size
        self.ledger.num_samples += num_entries
        self.ledger.num_sampled_out += num_entries


def _entries(event: Inserted) -> list[_Entry]:
    return [
        _Entry(event.first_key + i, event.life, event.sequence, payload)
        for i, payload in enumerate(event.payloads)
    ]
