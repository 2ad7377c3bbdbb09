"""The queue: bounds, order, deadlines, restarts, and a ledger that adds up. Turns are the gate's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.queue_table import QueueTable
from services.replay.tables import EventSink, Insertion, NoJournal
from shoal.clients.replay_shard import ITEM_OVERHEAD_BYTES, Sampled
from shoal.config.tables import QueueTable as QueueSettings
from shoal.errors import FailedPreconditionError, LimitError, UnavailableError
from shoal.journal.events import Inserted, Removed
from tests.unit.replay.payloads import LIFE
from tests.unit.replay.restarts import Recorder, assert_adds_up, assert_same
from tests.unit.replay.virtual_time import run, settle

PLENTY = 1 << 20


def make_table(max_items: int = 4, max_bytes: int = 1000, sink: EventSink | None = None) -> QueueTable:
    settings = QueueSettings(max_items=max_items, max_bytes=max_bytes)
    return QueueTable("train", settings, sink or NoJournal(), asyncio.get_running_loop().time)


def insertion(sequence: int, size: int = 10, payloads: int = 1) -> Insertion:
    return Insertion(
        LIFE, sequence, tuple(bytes([sequence % 256, i]) * (size // 2) for i in range(payloads)), ()
    )


def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


def sequences(sampled: Sampled) -> list[int]:
    assert sampled.transitions is None
    return [item.sequence for item in sampled.items]


def test_items_leave_in_order_once_with_rising_keys() -> None:
    async def main() -> None:
        table = make_table()
        for sequence in (5, 3, 9):
            assert await table.insert(insertion(sequence), 1.0)
        first = await table.sample(2, PLENTY, 1.0)
        second = await table.sample(2, PLENTY, 1.0)
        assert sequences(first) == [5, 3]
        assert sequences(second) == [9]
        assert [item.key for item in first.items + second.items] == [1, 2, 3]
        assert first.items[0].life == LIFE
        assert first.items[0].payloads == (bytes([5, 0]) * 5,)
        # What was sampled from, before it was.
        assert [(s.num_items, s.num_bytes, s.priority_mass) for s in (first, second)] == [
            (3, 30, 3),
            (1, 10, 1),
        ]
        assert table.num_items == table.num_bytes == 0
        assert_adds_up(table)

    run(main())


@pytest.mark.parametrize(("max_items", "max_bytes"), [(2, 1000), (100, 20)])
def test_full_in_items_or_bytes_waits_until_an_item_leaves(max_items: int, max_bytes: int) -> None:
    async def main() -> None:
        table = make_table(max_items, max_bytes)
        await table.insert(insertion(0), 1.0)
        await table.insert(insertion(1), 1.0)
        third = start(table.insert(insertion(2), 60.0))
        await asyncio.sleep(7.0)
        assert not third.done()
        assert sequences(await table.sample(1, PLENTY, 1.0)) == [0]
        assert await third
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [1, 2]
        assert table.ledger.insert_wait_s == pytest.approx(7.0)
        assert table.ledger.sample_wait_s == 0.0
        assert_adds_up(table)

    run(main())


def test_insert_deadline() -> None:
    async def main() -> None:
        table = make_table(max_items=1)
        await table.insert(insertion(0), 1.0)
        late = insertion(1)
        assert not await table.insert(late, 3.0)
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert late.first_key is None
        assert not await table.insert(late, 0.0)
        assert not await table.insert(late, -1.0)
        assert table.ledger.num_insert_timeouts == 3
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [0]
        assert_adds_up(table)

    run(main())


def test_sample_deadline_and_wait() -> None:
    async def main() -> None:
        table = make_table()
        assert sequences(await table.sample(1, PLENTY, 2.0)) == []
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)
        assert sequences(await table.sample(1, PLENTY, 0.0)) == []
        waiting = start(table.sample(3, PLENTY, 60.0))
        await asyncio.sleep(5.0)
        await table.insert(insertion(0), 1.0)
        assert sequences(await waiting) == [0]
        assert table.ledger.num_sample_timeouts == 2
        assert table.ledger.sample_wait_s == pytest.approx(7.0)
        assert table.ledger.insert_wait_s == 0.0

    run(main())


def test_append_that_never_fits_is_refused_with_the_limit() -> None:
    async def main() -> None:
        table = make_table(max_items=3, max_bytes=100)
        with pytest.raises(LimitError, match="102 bytes is above max_bytes of table 'train' \\(100\\)"):
            table.check(insertion(0, size=102))
        with pytest.raises(LimitError, match="120 bytes"):
            table.check(insertion(0, size=60, payloads=2))
        with pytest.raises(LimitError, match="4 items is above max_items of table 'train' \\(3\\)"):
            table.check(insertion(0, payloads=4))
        for fits in (insertion(1, size=100), insertion(2, payloads=3)):
            table.check(fits)

    run(main())


@pytest.mark.parametrize(("max_items", "max_bytes"), [(3, 1000), (100, 30)])
def test_an_append_of_several_goes_in_as_a_whole_or_not_at_all(max_items: int, max_bytes: int) -> None:
    async def main() -> None:
        table = make_table(max_items, max_bytes)
        await table.insert(insertion(0, payloads=2), 1.0)
        waiting = insertion(1, payloads=2)
        assert not await table.insert(waiting, 1.0)
        assert table.num_items == 2
        second = start(table.insert(waiting, 60.0))
        await settle()
        first = await table.sample(1, PLENTY, 1.0)
        assert await second
        rest = await table.sample(9, PLENTY, 1.0)
        assert sequences(first) + sequences(rest) == [0, 0, 1, 1]
        assert [item.key for item in first.items + rest.items] == [1, 2, 3, 4]
        assert [item.payloads[0][1] for item in first.items + rest.items] == [0, 1, 0, 1]
        assert waiting.first_key == 3
        assert_adds_up(table)

    run(main())


def test_state_alone_is_answered_at_once() -> None:
    async def main() -> None:
        table = make_table()
        empty = await table.sample(0, PLENTY, 60.0)
        assert (empty.items, empty.num_items, empty.num_bytes, empty.priority_mass) == ((), 0, 0, 0.0)
        await table.insert(insertion(0), 1.0)
        one = await table.sample(0, PLENTY, 60.0)
        assert (one.items, one.num_items, one.num_bytes, one.priority_mass) == ((), 1, 10, 1.0)
        assert table.ledger.num_sample_waits == table.ledger.num_samples == 0

    run(main())


def test_inserts_are_served_in_order_of_arrival_even_if_a_later_one_would_fit() -> None:
    async def main() -> None:
        table = make_table(max_items=100, max_bytes=100)
        await table.insert(insertion(0, size=60), 1.0)
        await table.insert(insertion(1, size=30), 1.0)
        large = start(table.insert(insertion(2, size=80), 60.0))
        await settle()
        small = start(table.insert(insertion(3, size=5), 60.0))
        await settle()
        assert not large.done()
        assert not small.done()
        await table.sample(1, PLENTY, 1.0)
        await settle()
        assert not large.done()
        assert not small.done()
        await table.sample(1, PLENTY, 1.0)
        assert await large
        assert await small
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [2, 3]

    run(main())


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_large_insert_that_gives_up_lets_the_smaller_one_behind_it_in(how: str) -> None:
    async def main() -> None:
        table = make_table(max_items=100, max_bytes=100)
        await table.insert(insertion(0, size=60), 1.0)
        large = start(table.insert(insertion(1, size=80), 5.0))
        await settle()
        small = start(table.insert(insertion(2, size=5), 60.0))
        await settle()
        if how == "cancel":
            large.cancel()
        await asyncio.wait([large])
        assert await small
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [0, 2]
        assert_adds_up(table)

    run(main())


def test_sample_stays_below_max_bytes_but_hands_out_one() -> None:
    async def main() -> None:
        table = make_table(max_items=10, max_bytes=1000)
        for sequence in range(5):
            await table.insert(insertion(sequence, size=100), 1.0)
        assert sequences(await table.sample(5, 2 * (100 + ITEM_OVERHEAD_BYTES), 1.0)) == [0, 1]
        assert sequences(await table.sample(5, 1, 1.0)) == [2]
        assert table.ledger.sampled_bytes == 300

    run(main())


def test_stopping_ends_those_who_wait_and_refuses_new_ones() -> None:
    async def main() -> None:
        table = make_table(max_items=1)
        sampler = start(table.sample(1, PLENTY, 60.0))
        await settle()
        await table.insert(insertion(0), 1.0)
        await sampler
        await table.insert(insertion(1), 1.0)
        inserter = start(table.insert(insertion(2), 60.0))
        await settle()
        table.stop_inserts()
        with pytest.raises(UnavailableError, match="draining"):
            await inserter
        with pytest.raises(UnavailableError):
            await table.insert(insertion(3), 1.0)
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [1]
        sampler = start(table.sample(1, PLENTY, 60.0))
        await settle()
        table.stop_samples()
        with pytest.raises(UnavailableError):
            await sampler
        with pytest.raises(UnavailableError):
            await table.sample(1, PLENTY, 1.0)
        assert table.ledger.num_insert_timeouts == table.ledger.num_sample_timeouts == 0
        assert_adds_up(table)

    run(main())


def test_queue_has_no_priorities() -> None:
    async def main() -> None:
        with pytest.raises(FailedPreconditionError, match="'train' is a queue"):
            make_table().update_priorities(np.array([1], np.uint64), np.array([1.0]))

    run(main())


def test_events_say_what_came_and_went() -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink=sink)
        await table.insert(insertion(7, payloads=2), 1.0)
        await table.sample(1, PLENTY, 1.0)
        await table.sample(0, PLENTY, 1.0)
        inserted, removed = sink.events
        assert isinstance(inserted, Inserted)
        assert isinstance(removed, Removed)
        assert (inserted.first_key, inserted.num_keys, inserted.sequence) == (1, 2, 7)
        assert [payload.data for payload in inserted.payloads] == [bytes([7, 0]) * 5, bytes([7, 1]) * 5]
        assert removed.keys.tolist() == [1]

    run(main())


def test_items_not_found_after_a_restart_are_corrupt_and_events_lost_leave_a_gap() -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(max_items=9, sink=sink)
        for sequence in range(3):
            await table.insert(insertion(sequence), 1.0)
        sink.snapshot(table)
        for sequence in range(3, 6):
            await table.insert(insertion(sequence), 1.0)
        del sink.events[1]
        again = sink.restart(lambda: make_table(max_items=9), lose=(2,))
        assert_adds_up(again)
        assert again.stats().num_corrupt == 1
        assert again.stats().num_evicted == 2
        assert sequences(await again.sample(9, PLENTY, 1.0)) == [0, 2, 3, 5]
        await again.insert(insertion(6), 1.0)
        assert (await again.sample(9, PLENTY, 1.0)).items[0].key == 7

    run(main())


def test_items_from_a_key_on_and_below_another() -> None:
    async def main() -> None:
        table = make_table(max_items=9)
        for sequence in range(5):
            await table.insert(insertion(sequence), 1.0)
        await table.sample(1, PLENTY, 1.0)
        assert [item.first_key for item in table.items_from(0)] == [2, 3, 4, 5]
        assert [item.first_key for item in table.items_from(3, 5)] == [3, 4]

    run(main())


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(2, 50), st.sampled_from([0.0, 1.0, 10.0])),
        st.tuples(st.just("sample"), st.integers(1, 4), st.sampled_from([0.0, 1.0, 10.0])),
        st.tuples(st.just("cancel"), st.integers(0, 1000), st.just(0.0)),
        st.tuples(st.just("pass"), st.integers(0, 3), st.just(0.0)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_nothing_is_lost_or_doubled_under_random_operations(
    operations: list[tuple[str, int, float]],
) -> None:
    """Every item ends where its outcome says: handed out exactly once if stored, never if not."""

    async def main() -> None:
        table = make_table(max_items=3, max_bytes=100)
        inserts: list[tuple[Insertion, asyncio.Task[bool]]] = []
        samples: list[asyncio.Task[Sampled]] = []
        for what, number, timeout_s in operations:
            if what == "insert":
                new = insertion(len(inserts), size=number, payloads=1 + number % 2)
                inserts.append((new, start(table.insert(new, timeout_s))))
            elif what == "sample":
                samples.append(start(table.sample(number, PLENTY, timeout_s)))
            elif what == "pass":
                await asyncio.sleep(number / 2)
            elif tasks := [task for _, task in inserts] + samples:
                tasks[number % len(tasks)].cancel()
            assert_adds_up(table)
        tasks = [task for _, task in inserts] + samples
        if tasks:
            await asyncio.wait(tasks)
        handed_out = [item for task in samples if not task.cancelled() for item in task.result().items]
        handed_out += (await table.sample(1000, PLENTY, 0.0)).items
        keys = [item.key for item in handed_out]
        assert sorted(keys) == list(range(1, len(keys) + 1)), "an item was lost or handed out twice"
        for new, task in inserts:
            assert task.cancelled() or task.result() == (new.first_key is not None)
            got = sorted((item.key, item.payloads[0]) for item in handed_out if item.sequence == new.sequence)
            wanted = [] if new.first_key is None else enumerate(new.payloads, new.first_key)
            assert got == list(wanted), "not as a whole, or not as it came"
        for task in samples:
            if not task.cancelled():
                taken = [item.key for item in task.result().items]
                assert taken == sorted(taken), "not first in, first out"
        assert_adds_up(table)
        assert table.num_items == table.num_bytes == 0

    run(main())


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("insert"), st.integers(1, 3)), st.tuples(st.just("sample"), st.integers(1, 4))
        )
    ),
    st.integers(0, 20),
)
def test_a_restart_changes_nothing(operations: list[tuple[str, int]], snapshot_after: int) -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(max_items=6, sink=sink)
        for i, (what, number) in enumerate(operations):
            if i == snapshot_after:
                table.ledger.num_inserted += 1
                table.ledger.num_rejected["range"] += 1
                sink.snapshot(table)
            if what == "insert":
                await table.insert(insertion(i, payloads=number), 0.0)
            else:
                await table.sample(number, PLENTY, 0.0)
        again = sink.restart(lambda: make_table(max_items=6))
        assert_adds_up(table)
        assert_adds_up(again)
        assert_same(table, again)
        assert again.ledger.num_rejected == table.ledger.num_rejected
        for each in (table, again):
            await each.sample(9, PLENTY, 0.0)
            await each.insert(insertion(1000), 0.0)
        assert_same(table, again)

    run(main())
