"""Sampled tables after a restart: the same items, priorities, counters and future as without it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.ring_table import RingTable
from services.replay.sequence_table import SequenceTable
from services.replay.tables import EventSink, Insertion, NoJournal
from services.replay.transition_table import TransitionTable
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.journal.events import Inserted, StoredPayload
from shoal.records import FIRST
from shoal.wire import encode_columns
from tests.unit.replay.payloads import insertion, payload, trajectory
from tests.unit.replay.restarts import MemoryStore, Recorder, assert_adds_up, assert_same
from tests.unit.replay.virtual_time import run

PLENTY = 1 << 24
SIZE = len(payload(0, envs=1))

MakeTable = Callable[[EventSink], RingTable]


def sequences(**settings: Any) -> MakeTable:
    def make(sink: EventSink) -> SequenceTable:
        clock = asyncio.get_running_loop().time
        return SequenceTable(
            "train", SequenceSettings(**settings), sink, MemoryStore(), clock, np.random.default_rng(0)
        )

    return make


def transitions(**settings: Any) -> MakeTable:
    def make(sink: EventSink) -> TransitionTable:
        clock = asyncio.get_running_loop().time
        return TransitionTable(
            "train", TransitionSettings(**settings), sink, PLENTY, clock, np.random.default_rng(0)
        )

    return make


class Source:
    """Insertions of either kind: unrolls of three streams, some missing; rows of up to three environments."""

    def __init__(self) -> None:
        self._sequence = 0
        self._steps = [0, 0, 0]

    def next(self, kind: str, number: int) -> Insertion:
        self._sequence += 1
        many = 1 + number % 3
        if kind == "transition":
            made = trajectory(self._sequence, rows=2 + number % 2, envs=many)
            made.columns[FIRST][1, 0] = number % 5 == 0
            given = [float(number % 4)] * ((1 + number % 2) * many) if number % 7 == 0 else None
            return insertion(self._sequence, made, priorities=given)
        unrolls = []
        for i in range(many):
            stream = (number + i * (number % 2)) % 3
            self._steps[stream] += 2 * (number % 11 == 0)
            unrolls.append(
                trajectory(self._sequence + i, envs=1, stream=stream, first_step=self._steps[stream])
            )
            self._steps[stream] += 2
        given = [float(number % 4)] * many if number % 7 == 0 else None
        return insertion(self._sequence, *unrolls, priorities=given)


async def operate(table: RingTable, source: Source, what: str, number: int) -> None:
    if what == "insert":
        new = source.next(table.stats().kind, number)
        table.check(new)
        await table.insert(new, 0.0)
    elif what == "sample":
        await table.sample(1 + number % 5, PLENTY, 0.0)
    elif table.save().counters["max_priority"] < 1e6 and number % 2:
        # Some of them are gone, some do not exist yet.
        first = max(1, table.oldest_key - 2)
        chosen = np.arange(first, first + 1 + number % 9, 2, dtype=np.uint64)
        table.update_priorities(chosen, np.linspace(0.0, number / 7, len(chosen)))


SHAPES = [(1, 0), (2, 0), (2, 1), (3, 1), (4, 2)]
SHARED = st.fixed_dictionaries(
    {
        "max_items": st.sampled_from([8, 9, 40]),
        "alpha": st.just(0.7),
        "max_times_sampled": st.sampled_from([None, 1, 2]),
        "min_items": st.sampled_from([1, 3]),
    },
    optional={"samples_per_insert": st.sampled_from([0.5, 4.0]), "ratio_tolerance": st.just(3.0)},
).filter(lambda shared: shared.get("samples_per_insert", 0) <= (shared["max_times_sampled"] or 4.0))
SEQUENCES = st.builds(
    lambda shared, shape, max_bytes: sequences(
        **shared, unrolls=shape[0], overlap_unrolls=shape[1], max_bytes=max_bytes
    ),
    SHARED,
    st.sampled_from(SHAPES),
    st.sampled_from([1 << 30, 5 * SIZE]),
)
TRANSITIONS = st.builds(
    lambda shared, max_bytes: transitions(**shared, n_step=2, max_bytes=max_bytes),
    SHARED,
    st.sampled_from([1 << 30, 800]),
)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "sample", "update"]), st.integers(0, 100)), max_size=40
)


@given(st.one_of(SEQUENCES, TRANSITIONS), OPERATIONS, st.integers(0, 40), st.integers(0, 40))
def test_a_restart_changes_nothing(
    make_table: MakeTable, operations: list[tuple[str, int]], first: int, second: int
) -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink)
        source = Source()
        for i, (what, number) in enumerate(operations):
            if i in (first, second):
                table.ledger.num_inserted += 1
                table.ledger.num_rejected["limit"] += 1
                sink.snapshot(table)
            await operate(table, source, what, number)
            assert_adds_up(table)
        again = sink.restart(lambda: make_table(NoJournal()))
        assert_adds_up(again)
        assert_same(table, again)
        assert again.ledger.num_rejected == table.ledger.num_rejected
        # And both go on alike; what is sampled would differ.
        twin = copy.deepcopy(source)
        for number in range(12):
            for what in ("update", "insert"):
                await operate(table, source, what, number)
                await operate(again, twin, what, number)
            assert_same(table, again)
            assert_adds_up(again)

    run(main())


@given(
    st.one_of(SEQUENCES, TRANSITIONS),
    st.one_of(SEQUENCES, TRANSITIONS),
    OPERATIONS,
    st.integers(0, 40),
    st.sets(st.integers(0, 60)),
    st.sets(st.integers(0, 60)),
)
def test_whatever_is_damaged_or_configured_anew_the_rest_is_there_and_adds_up(
    make_table: MakeTable,
    make_other: MakeTable,
    operations: list[tuple[str, int]],
    snapshot_after: int,
    lost_keys: set[int],
    lost_events: set[int],
) -> None:
    async def main() -> None:
        sink = Recorder()
        table, other = make_table(sink), make_other(NoJournal())
        source = Source()
        for i, (what, number) in enumerate(operations):
            if i == snapshot_after:
                sink.snapshot(table)
            await operate(table, source, what, number)
        sink.events = [event for i, event in enumerate(sink.events) if i not in lost_events]
        if type(other) is not type(table):
            other = make_table(NoJournal())
        again = sink.restart(lambda: other, lose=tuple(lost_keys))
        assert_adds_up(again)
        # No key is used twice: the next one is above all that were found.
        assert again.save().next_key <= table.save().next_key
        for number in range(12):
            await operate(again, source, "insert", number)
            await operate(again, source, "sample", number)
            assert_adds_up(again)

    run(main())


@pytest.mark.parametrize("make_table", [sequences(max_items=40), transitions(max_items=40)])
def test_items_that_are_not_found_are_counted_as_corrupt(make_table: MakeTable) -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink)
        source = Source()
        for _ in range(4):
            await operate(table, source, "insert", 2)
        sink.snapshot(table)
        (first, lost, *_) = table.items_from(0)
        again = sink.restart(lambda: make_table(NoJournal()), lose=(lost.first_key,))
        stats = again.stats()
        assert stats.num_corrupt == stats.num_evicted == lost.num_keys > 0
        assert lost.first_key not in again.save().keys
        assert first.first_key in again.save().keys
        assert again.save().next_key == table.save().next_key
        assert_adds_up(again)

    run(main())


# Of three old and three new ones in a ring of ten.
@pytest.mark.parametrize(("lost", "num_evicted"), [(1, 0), (5, 1), (1000, 3)])
@pytest.mark.parametrize("make_table", [sequences(max_items=10), transitions(max_items=10)])
def test_events_that_are_lost_leave_a_gap_in_the_keys(
    make_table: MakeTable, lost: int, num_evicted: int
) -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink)
        source = Source()
        await operate(table, source, "insert", 2)
        (event,) = sink.events
        assert isinstance(event, Inserted)
        assert event.num_keys == 3
        table.apply(replace(event, first_key=4 + lost))
        # Known already.
        table.apply(event)
        assert table.num_items == 6 - num_evicted
        assert table.stats().num_inserted == 6 + lost
        assert table.stats().num_evicted == lost + num_evicted
        assert_adds_up(table)
        await operate(table, source, "insert", 2)
        assert table.save().next_key == 10 + lost

    run(main())


def test_rows_that_cannot_be_read_are_corrupt() -> None:
    async def main() -> None:
        sink = Recorder()
        table = transitions(max_items=40)(sink)
        source = Source()
        await operate(table, source, "insert", 2)
        (event,) = sink.events
        assert isinstance(event, Inserted)
        other_columns = encode_columns({"other": np.zeros(event.num_keys)})
        for data in (b"no columns", encode_columns({"too": np.zeros(1)}), other_columns):
            table.apply(replace(event, first_key=table.save().next_key, payloads=(StoredPayload.of(data),)))
        assert table.num_items == event.num_keys
        assert table.stats().num_corrupt == 3 * event.num_keys
        assert_adds_up(table)

    run(main())
