"""Restarts of a table without files: what it told its sink, written and read as in a file, makes it anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from services.replay.storage.payload_store import Found, PayloadStore
from services.replay.tables import Table
from shoal.journal.events import Event, Inserted, TableState
from shoal.journal.format import decode_record, encode_record
from shoal.journal.framing import Frame

# Ledger entries that are the same after a restart; the others are as of the last state.
RECOVERED = (
    "num_inserted",
    "num_sampled_out",
    "num_evicted",
    "num_corrupt",
    "num_samples",
    "num_priorities_updated",
)


class Recorder:
    """A sink that keeps all events, and what the table was at one moment."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._state: TableState | None = None
        self._items: list[Inserted] = []

    def record(self, event: Event) -> None:
        self.events.append(through_file(event))

    def snapshot(self, table: Table) -> None:
        """From here on the events of before are not needed."""
        self._state = through_file(table.save())
        self._items = [through_file(item) for item in table.items_from(0)]
        self.events.clear()

    def restart(self, make_table: Callable[[], Table], *, lose: tuple[int, ...] = ()) -> Table:
        """`lose`: keys whose item was damaged on disk, of those in the snapshot."""
        table = make_table()
        if self._state is not None:
            table.restore(self._state, [item for item in self._items if item.first_key not in lose])
        for event in self.events:
            table.apply(event)
        return table


def through_file(record: Event | TableState) -> Event | TableState:
    meta, blobs = encode_record(record)
    blob_views = tuple(map(memoryview, blobs))
    return decode_record(Frame(0, 0, memoryview(meta), blob_views, tuple(range(len(blobs)))), 1)


class MemoryStore(PayloadStore):
    """Payloads in memory; those in `damaged` (by their bytes) are lost when they are read."""

    def __init__(self) -> None:
        super().__init__(max_items=64, max_ram_bytes=None, files=None, directory=None)
        self.damaged: set[bytes | None] = set()

    async def fetch(self, found: Found) -> list[bytes | None]:
        return [None if data in self.damaged else data for data in await super().fetch(found)]


def assert_adds_up(table: Table) -> None:
    """inserted = stored + sampled out + evicted + rejected, and the table is within its bounds."""
    stats = table.stats()
    gone = stats.num_sampled_out + stats.num_evicted + stats.num_rejected
    assert stats.num_inserted == stats.num_items + gone
    assert 0 <= stats.num_corrupt <= stats.num_evicted
    assert 0 <= stats.num_items <= stats.max_items
    assert 0 <= stats.num_bytes <= stats.max_bytes
    assert table.num_items == len(table.save().keys)


def assert_same(one: Table, other: Table) -> None:
    """What both hold, how it would be sampled, and what was counted."""
    mine, its = one.save(), other.save()
    assert mine.next_key == its.next_key
    assert one.oldest_key == other.oldest_key
    for name in ("keys", "priorities", "times_sampled"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(its, name), err_msg=name)
    for name in its.counters:
        if name in RECOVERED or name.startswith(("limiter", "max_priority")):
            assert mine.counters[name] == its.counters[name], name
    mine_stats, its_stats = one.stats(), other.stats()
    assert mine_stats.num_bytes == its_stats.num_bytes
    assert mine_stats.priority_mass == its_stats.priority_mass
    assert _contents(one) == _contents(other)


def _contents(table: Table) -> list[object]:
    return [
        replace(item, payloads=tuple(p.data for p in item.payloads), priorities=item.priorities.tobytes())
        for item in table.items_from(0)
    ]
