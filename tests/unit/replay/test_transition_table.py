"""The transition table: rows as the n-step function makes them, bounds, samples, priorities, events."""

from __future__ import annotations

import asyncio
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.replay.column_ring import ColumnRing, row_spec
from services.replay.n_step import build_transitions
from services.replay.priority_ring import PriorityRing
from services.replay.tables import EventSink, NoJournal
from services.replay.transition_table import OWN_DATA, TransitionTable
from shoal.clients.replay_shard import PrioritiesUpdated
from shoal.config.connections import LimitsSection
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.errors import FailedPreconditionError, InvalidArgumentError, LimitError
from shoal.journal.events import Inserted, Removed, SampledOnce
from shoal.records import ACTION, FIRST, OBSERVATION, TERMINATED, Columns, Trajectory, Transitions
from shoal.wire import decode_columns
from tests.unit.replay.payloads import LIFE, insertion, trajectory
from tests.unit.replay.restarts import Recorder, assert_adds_up
from tests.unit.replay.virtual_time import run, settle

PLENTY = 1 << 24
# Of the trajectories below: 2 steps of 2 environments.
ROWS = 4
ROW_BYTES = sum(array[0].nbytes for array in build_transitions(trajectory(), 1, 0.9)[0].values())


def make_table(sink: EventSink | None = None, **settings: Any) -> TransitionTable:
    return TransitionTable(
        "train",
        TransitionSettings(**{"max_items": 16, **settings}),
        sink or NoJournal(),
        PLENTY,
        asyncio.get_running_loop().time,
        np.random.default_rng(0),
    )


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def rows_of(*trajectories: Trajectory, n: int = 1, discount: float = 0.99) -> Columns:
    parts = [build_transitions(t, n, discount)[0] for t in trajectories]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


async def sample(table: TransitionTable, num_items: int, max_bytes: int = PLENTY) -> Transitions:
    sampled = await table.sample(num_items, max_bytes, 0.0)
    assert sampled.items == ()
    assert sampled.transitions is not None
    return sampled.transitions


def test_rows_are_those_of_the_n_step_function_whatever_is_sampled() -> None:
    async def main() -> None:
        table = make_table(n_step=2, discount=0.5, max_items=8)
        made = [trajectory(number) for number in range(5)]
        made[1].columns[TERMINATED][0, 0] = True
        made[2].columns[FIRST][1, 1] = True
        for sequence in range(0, 4, 2):
            both = insertion(sequence, made[sequence], made[sequence + 1])
            table.check(both)
            assert await table.insert(both, 0.0)
        wanted = rows_of(*made[:4], n=2, discount=0.5)
        assert len(wanted[ACTION]) == 4 * ROWS - 1
        for _ in range(5):
            got = await sample(table, 64)
            assert len(got) == 64
            assert got.columns.keys() == wanted.keys()
            # 15 rows came, the newest 8 are there; key 1 is the first row.
            assert set(got.keys.tolist()) == set(range(8, 16))
            for name, column in got.columns.items():
                np.testing.assert_array_equal(column, wanted[name][got.keys.astype(int) - 1], err_msg=name)
        assert table.ledger.num_evicted == 7
        assert_adds_up(table)

    run(main())


def test_state_is_that_before_the_sample_and_alone_at_once() -> None:
    async def main() -> None:
        table = make_table(alpha=1.0, max_times_sampled=1)
        empty = await table.sample(0, PLENTY, 60.0)
        assert (empty.transitions, empty.num_items, empty.num_bytes, empty.priority_mass) == (None, 0, 0, 0.0)
        await table.insert(insertion(0, trajectory(), priorities=[1.0, 2.0, 3.0, 0.0]), 0.0)
        state = await table.sample(0, PLENTY, 60.0)
        # A row without a priority above 0 is held but cannot be sampled.
        assert (state.num_items, state.num_bytes, state.priority_mass) == (3, 4 * ROW_BYTES, 6.0)
        sampled = await table.sample(64, PLENTY, 0.0)
        assert replace(sampled, transitions=None) == state
        assert sampled.transitions is not None
        assert dict(
            zip(sampled.transitions.keys.tolist(), sampled.transitions.masses.tolist(), strict=True)
        ) == {
            1: 1.0,
            2: 2.0,
            3: 3.0,
        }
        assert table.ledger.num_sampled_out == 3
        assert table.num_items == 1
        assert (await table.sample(1, PLENTY, 1.0)).num_sampled == 0
        assert_adds_up(table)

    run(main())


@pytest.mark.parametrize("bound", [{"max_items": 6}, {"max_items": 99, "max_bytes": 7 * ROW_BYTES - 1}])
def test_the_oldest_rows_go_by_number_or_by_bytes(bound: dict[str, int]) -> None:
    async def main() -> None:
        table = make_table(**bound)
        for number in range(7):
            assert await table.insert(insertion(number, trajectory(number)), 0.0)
            assert table.num_bytes == table.num_items * ROW_BYTES
            assert_adds_up(table)
        assert table.num_items == 6
        assert table.oldest_key == 7 * ROWS - 5
        got = await sample(table, 64)
        np.testing.assert_array_equal(got.columns[ACTION], (got.keys.astype(int) - 1) // ROWS)

    run(main())


def test_what_can_never_be_stored_is_refused() -> None:
    async def main() -> None:
        table = make_table(max_items=7, max_bytes=1000)
        with pytest.raises(LimitError, match=r"8 items is above max_items of table 'train' \(7\)"):
            table.check(insertion(0, trajectory(), trajectory()))
        with pytest.raises(LimitError, match=r"bytes is above max_bytes of table 'train' \(1000\)"):
            table.check(insertion(0, trajectory(width=40)))
        with pytest.raises(InvalidArgumentError, match="3 priorities for 4 steps"):
            table.check(insertion(0, trajectory(), priorities=[1.0] * 3))
        with pytest.raises(InvalidArgumentError, match="finite"):
            table.check(insertion(0, trajectory(), priorities=[1.0, 1.0, -1.0, 1.0]))
        no_end = trajectory()
        del no_end.columns[TERMINATED]
        with pytest.raises(InvalidArgumentError, match="transitions need the columns"):
            table.check(insertion(0, no_end))
        with pytest.raises(InvalidArgumentError, match="trajectory makes rows of"):
            table.check(insertion(0, trajectory(rows=2, envs=1), trajectory(rows=2, envs=1, width=5)))
        fits = insertion(0, trajectory())
        for _ in range(2):
            table.check(fits)
            assert await table.insert(fits, 0.0)
        with pytest.raises(
            InvalidArgumentError, match=r"float32\[5\].* but table 'train' has .*float32\[4\]"
        ):
            table.check(insertion(0, trajectory(width=5)))

    run(main())


def test_trajectory_without_a_transition_is_stored_as_nothing() -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink)
        only_resets = trajectory()
        only_resets.columns[FIRST][1:] = True
        nothing = insertion(0, only_resets)
        table.check(nothing)
        assert await table.insert(nothing, 0.0)
        assert nothing.first_key is not None
        assert table.num_items == 0
        assert sink.events == []
        await table.insert(insertion(1, trajectory()), 0.0)
        assert table.save().keys.tolist() == [1, 2, 3, 4]

    run(main())


def test_answers_stay_below_max_bytes_but_bring_one() -> None:
    async def main() -> None:
        table = make_table()
        await table.insert(insertion(0, trajectory()), 0.0)
        assert len(await sample(table, 500, 20_000)) < 20_000 / ROW_BYTES
        assert len(await sample(table, 500, 20_000)) > (20_000 - 10 * 300) / (ROW_BYTES + 20) - 10
        assert len(await sample(table, 500, 1)) == 1

    run(main())


def test_priorities_are_set_where_the_row_is_there() -> None:
    async def main() -> None:
        table = make_table(alpha=1.0, max_items=4)
        for number in range(2):
            await table.insert(insertion(number, trajectory(number)), 0.0)
        done = table.update_priorities(keys(4, 5, 6), np.array([9.0, 3.0, 5.0]))
        assert done == PrioritiesUpdated(num_updated=2, num_gone=1)
        assert (await table.sample(0, PLENTY, 0.0)).priority_mass == 3.0 + 5.0 + 1.0 + 1.0
        with pytest.raises(FailedPreconditionError):
            make_table().update_priorities(keys(1), np.array([1.0]))

    run(main())


def test_the_limiter_counts_rows() -> None:
    async def main() -> None:
        table = make_table(max_items=99, min_items=8, samples_per_insert=1.0, ratio_tolerance=4.0)
        waiting = asyncio.create_task(table.sample(64, PLENTY, 60.0))
        await table.insert(insertion(0, trajectory()), 0.0)
        await settle()
        assert not waiting.done()
        await table.insert(insertion(1, trajectory()), 0.0)
        assert (await waiting).num_sampled == 4
        for sequence in range(2, 4):
            assert await table.insert(insertion(sequence, trajectory()), 0.0)
        assert not await table.insert(insertion(4, trajectory()), 0.0)

    run(main())


def test_events_hold_the_rows_and_none_are_packed_without_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink, alpha=1.0, max_times_sampled=1)
        await table.insert(insertion(3, trajectory(1), priorities=[1.0, 2.0, 3.0, 4.0]), 0.0)
        await table.sample(1, PLENTY, 0.0)
        inserted, sampled, removed = sink.events
        assert isinstance(inserted, Inserted)
        assert (inserted.first_key, inserted.num_keys, inserted.life, inserted.sequence) == (1, 4, LIFE, 3)
        assert inserted.priorities.tolist() == [1.0, 2.0, 3.0, 4.0]
        columns = decode_columns(inserted.payloads[0].data or b"", OWN_DATA)
        np.testing.assert_array_equal(columns[OBSERVATION], rows_of(trajectory(1))[OBSERVATION])
        assert isinstance(sampled, SampledOnce)
        assert isinstance(removed, Removed)
        assert sampled.keys.tolist() == removed.keys.tolist()
        monkeypatch.setattr("services.replay.transition_table.encode_columns", None)
        assert await make_table().insert(insertion(0, trajectory()), 0.0)

    run(main())


def test_items_from_are_cut_at_appends_and_holes() -> None:
    async def main() -> None:
        table = make_table(max_items=10)
        for number in range(3):
            await table.insert(insertion(number, trajectory(number)), 0.0)
        table.apply(Removed(keys(6)))
        events = table.items_from(0)
        assert [(e.first_key, e.num_keys, e.sequence) for e in events] == [
            (3, 2, 0),
            (5, 1, 1),
            (7, 2, 1),
            (9, 4, 2),
        ]
        for event in events:
            columns = decode_columns(event.payloads[0].data or b"", OWN_DATA)
            assert columns[ACTION].tolist() == [event.sequence] * event.num_keys
        assert [(e.first_key, e.num_keys) for e in table.items_from(4, 8)] == [(4, 1), (5, 1), (7, 1)]

    run(main())


def test_a_slice_of_the_items_costs_no_copy_of_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        table = make_table()
        await table.insert(insertion(0, trajectory()), 0.0)
        monkeypatch.setattr(PriorityRing, "state", None)
        assert [(e.first_key, e.num_keys) for e in table.items_from(2, 4)] == [(2, 2)]

    run(main())


def test_a_restart_unpacks_what_is_still_there_and_drops_the_packed_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        table = make_table(max_items=8)
        for number in range(2):
            await table.insert(insertion(number, trajectory(number)), 0.0)
        items = table.items_from(0)
        await table.insert(insertion(2, trajectory(2)), 0.0)
        items += table.items_from(9)
        state = table.save()
        unpacked = []

        def watched(data: bytes, limits: LimitsSection) -> Columns:
            # No other packed rows are left of those that were unpacked before.
            assert [item.first_key for item in items if item.payloads[0].data is None][:-1] == unpacked
            columns = decode_columns(data, limits)
            unpacked.append(1 + ROWS * int(columns[ACTION][0]))
            return columns

        monkeypatch.setattr("services.replay.transition_table.decode_columns", watched)
        again = make_table(max_items=8)
        again.restore(state, items)
        assert unpacked == [5, 9]
        assert again.save().keys.tolist() == list(range(5, 13))
        monkeypatch.setattr("services.replay.transition_table.decode_columns", decode_columns)
        event = table.items_from(9)[0]
        applied = make_table()
        applied.apply(event)
        assert applied.num_items == ROWS
        assert event.payloads[0].data is None

    run(main())


def test_columns_use_memory_as_rows_come_and_wrap() -> None:
    columns = {"a": np.arange(700, dtype=np.int64)}
    ring = ColumnRing(row_spec(columns), max_rows=3000, first_key=41)
    used = []
    for first in range(41, 41 + 700 * 8, 700):
        ring.write(np.arange(first, first + 700, dtype=np.uint64), {"a": np.arange(first, first + 700)})
        used.append(ring.used_bytes // 8)
    assert used == [700, 1400, 2100, 2800, 3000, 3000, 3000, 3000]
    newest = np.arange(41 + 700 * 8 - 3000, 41 + 700 * 8, dtype=np.uint64)
    np.testing.assert_array_equal(ring.read(newest)["a"], newest)


def test_columns_far_above_the_memory_of_any_machine_cost_nothing_until_they_are_used() -> None:
    columns = {"a": np.ones((3, 1 << 16), np.float32), "none": np.ones((3, 0), np.float32)}
    before_bytes = rss_bytes()
    ring = ColumnRing(row_spec(columns), max_rows=1 << 24, first_key=1)
    ring.write(keys(1, 2, 3), columns)
    used_bytes = rss_bytes() - before_bytes
    reserved_bytes = ring.max_rows * ring.row_bytes
    print(f"{reserved_bytes >> 40} TiB reserved, 3 rows of 256 KiB written: {used_bytes >> 10} KiB used")
    assert used_bytes < 64 << 20
    np.testing.assert_array_equal(ring.read(keys(3))["a"], columns["a"][:1])


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
