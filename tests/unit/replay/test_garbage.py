"""Items are no work for the garbage collector: a full pass over a million objects would stop a shard."""

from __future__ import annotations

import asyncio
import gc

import numpy.random  # noqa: F401  its objects are not those of a table
import pytest

from services.replay.sequence_table import SequenceTable
from services.replay.storage.payload_store import PayloadStore
from services.replay.tables import EventSink, NoJournal
from services.replay.transition_table import TransitionTable
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.journal.events import Event, Inserted, Location
from tests.unit.replay.payloads import insertion, trajectory
from tests.unit.replay.restarts import Recorder
from tests.unit.replay.virtual_time import run

NUM_ITEMS = 1000
# Of a table that does not grow with its items.
MAX_OBJECTS = 100


class SyncedAtOnce:
    """A journal whose disk is fast."""

    def record(self, event: Event) -> None:
        if isinstance(event, Inserted):
            for i, payload in enumerate(event.payloads):
                payload.location = Location(event.first_key, i)
                payload.is_synced = True


def num_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def sequences(sink: EventSink, max_ram_bytes: int | None = None) -> SequenceTable:
    settings = SequenceSettings(
        max_items=NUM_ITEMS, unrolls=2, durability="wal", max_ram_bytes=max_ram_bytes, alpha=0.5
    )
    store = PayloadStore(NUM_ITEMS, max_ram_bytes, None, None)
    return SequenceTable("train", settings, sink, store, asyncio.get_running_loop().time)


def transitions(sink: EventSink) -> TransitionTable:
    settings = TransitionSettings(max_items=NUM_ITEMS, alpha=0.5)
    return TransitionTable("train", settings, sink, 1 << 20, asyncio.get_running_loop().time)


async def fill(table: SequenceTable | TransitionTable) -> None:
    """And a half more, an item per append."""
    for number in range(NUM_ITEMS * 3 // 2):
        await table.insert(insertion(number, trajectory(number, rows=2, envs=1, first_step=number)), 0.0)
    assert table.num_items == NUM_ITEMS


def check(what: str, before: int) -> None:
    added = num_objects() - before
    print(f"{what} of {NUM_ITEMS} items: {added} objects for the garbage collector")
    assert added < MAX_OBJECTS


@pytest.mark.parametrize("max_ram_bytes", [None, 1 << 14])
def test_unrolls_are_no_objects(max_ram_bytes: int | None) -> None:
    async def main() -> None:
        before = num_objects()
        table = sequences(SyncedAtOnce(), max_ram_bytes)
        await fill(table)
        check("sequence table", before)
        assert table.stats().ram_bytes < (max_ram_bytes or table.num_bytes + 1)

    run(main())


def test_rows_are_no_objects() -> None:
    async def main() -> None:
        before = num_objects()
        table = transitions(NoJournal())
        await fill(table)
        check("transition table", before)

    run(main())


def test_nor_are_they_after_a_restart() -> None:
    async def main() -> None:
        for make in (sequences, transitions):
            sink = Recorder()
            await fill(table := make(sink))
            sink.snapshot(table)
            before = num_objects()
            again = sink.restart(lambda make=make: make(NoJournal()))  # type: ignore[misc]
            check(f"{again.stats().kind} table after a restart", before)
            assert again.num_items == NUM_ITEMS

    run(main())


def test_control_an_object_per_item_is_seen() -> None:
    before = num_objects()
    items: list[list[int]] = [[] for _ in range(NUM_ITEMS)]
    with pytest.raises(AssertionError):
        check("list", before)
    assert len(items) == NUM_ITEMS
