"""The queue: bounds, order, deadlines, cancellation, fairness, and a ledger that adds up under anything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.queue_table import QueueTable
from services.replay.tables import Insertion
from shoal.clients.replay import ITEM_OVERHEAD_BYTES
from shoal.config.tree import QueueTable as QueueSettings
from shoal.errors import FailedPreconditionError, LimitError, UnavailableError
from shoal.records import Item, Life
from tests.unit.replay.virtual_time import run, settle

LIFE = Life("actor", "run")
PLENTY = 1 << 20


def make_table(max_items: int = 4, max_bytes: int = 1000) -> QueueTable:
    return QueueTable(
        "train", QueueSettings(max_items=max_items, max_bytes=max_bytes), asyncio.get_running_loop().time
    )


def insertion(sequence: int, size: int = 10) -> Insertion:
    return Insertion(LIFE, sequence, bytes([sequence % 256]) * size)


def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


def sequences(items: tuple[Item, ...]) -> list[int]:
    return [item.sequence for item in items]


def assert_adds_up(table: QueueTable) -> None:
    stats = table.stats()
    assert stats.num_inserted == stats.num_items + stats.num_sampled_out + stats.num_evicted
    assert stats.num_items <= stats.max_items
    assert stats.num_bytes <= stats.max_bytes


def test_items_leave_in_order_once_with_rising_keys() -> None:
    async def main() -> None:
        table = make_table()
        for sequence in (5, 3, 9):
            assert await table.insert(insertion(sequence), 1.0)
        first = await table.sample(2, PLENTY, 1.0)
        second = await table.sample(2, PLENTY, 1.0)
        assert sequences(first) == [5, 3]
        assert sequences(second) == [9]
        assert [item.key for item in first + second] == [1, 2, 3]
        assert first[0].life == LIFE
        assert first[0].payload == bytes([5]) * 10
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
        assert late.key is None
        assert not await table.insert(late, 0.0)
        assert not await table.insert(late, -1.0)
        assert table.ledger.num_insert_timeouts == 3
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [0]
        assert_adds_up(table)

    run(main())


def test_sample_deadline_and_wait() -> None:
    async def main() -> None:
        table = make_table()
        assert await table.sample(1, PLENTY, 2.0) == ()
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)
        assert await table.sample(1, PLENTY, 0.0) == ()
        waiting = start(table.sample(3, PLENTY, 60.0))
        await asyncio.sleep(5.0)
        await table.insert(insertion(0), 1.0)
        assert sequences(await waiting) == [0]
        assert table.ledger.num_sample_timeouts == 2
        assert table.ledger.sample_wait_s == pytest.approx(7.0)
        assert table.ledger.insert_wait_s == 0.0

    run(main())


def test_item_that_never_fits_is_refused_at_once_with_the_limit() -> None:
    async def main() -> None:
        table = make_table(max_bytes=100)
        with pytest.raises(LimitError, match="101 bytes is above max_bytes of table 'train' \\(100\\)"):
            await table.insert(insertion(0, size=101), 60.0)
        assert await table.insert(insertion(1, size=100), 1.0)
        assert_adds_up(table)

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


def test_samplers_are_served_in_order_of_arrival() -> None:
    async def main() -> None:
        table = make_table()
        waiting = [start(table.sample(1, PLENTY, 60.0)) for _ in range(3)]
        await settle()
        for sequence in range(3):
            await table.insert(insertion(sequence), 1.0)
        # Comes while the first in line is woken but has not run yet: it must not overtake.
        late = start(table.sample(1, PLENTY, 60.0))
        assert [sequences(await task) for task in waiting] == [[0], [1], [2]]
        await table.insert(insertion(3), 1.0)
        assert sequences(await late) == [3]

    run(main())


def test_sampler_that_runs_out_of_time_does_not_overtake_the_one_that_was_woken() -> None:
    async def main() -> None:
        table = make_table()

        def insert_now() -> None:
            with pytest.raises(StopIteration):
                table.insert(insertion(0), 1.0).send(None)

        first = start(table.sample(1, PLENTY, 60.0))
        second = start(table.sample(1, PLENTY, 5.0))
        await settle()
        # In the same moment, just after the second one's time is up.
        asyncio.get_running_loop().call_later(5.0, insert_now)
        assert await second == ()
        assert sequences(await first) == [0]

    run(main())


def test_cancelled_sampler_takes_nothing_even_after_it_was_woken() -> None:
    async def main() -> None:
        table = make_table()
        first = start(table.sample(1, PLENTY, 60.0))
        second = start(table.sample(1, PLENTY, 60.0))
        await settle()
        await table.insert(insertion(0), 1.0)
        first.cancel()
        assert sequences(await second) == [0]
        assert first.cancelled()
        assert_adds_up(table)

    run(main())


def test_cancelled_insert_is_stored_never_or_once() -> None:
    async def main() -> None:
        table = make_table(max_items=1)
        await table.insert(insertion(0), 1.0)
        withdrawn, granted = insertion(1), insertion(2)
        first = start(table.insert(withdrawn, 60.0))
        second = start(table.insert(granted, 60.0))
        await settle()
        first.cancel()
        await settle()
        assert sequences(await table.sample(1, PLENTY, 1.0)) == [0]
        # Stored by the sampler above, cancelled before its own task ran: the key tells.
        second.cancel()
        await settle()
        assert first.cancelled()
        assert second.cancelled()
        assert withdrawn.key is None
        assert granted.key == 2
        assert sequences(await table.sample(9, PLENTY, 1.0)) == [2]
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
            make_table().update_priorities([1], [1.0])

    run(main())


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 60), st.sampled_from([0.0, 1.0, 10.0])),
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
        samples: list[asyncio.Task[tuple[Item, ...]]] = []
        for what, number, timeout_s in operations:
            if what == "insert":
                new = insertion(len(inserts), size=number)
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
        handed_out = [item for task in samples if not task.cancelled() for item in task.result()]
        rest = await table.sample(1000, PLENTY, 0.0)
        out = sequences(tuple(handed_out)) + sequences(rest)
        assert len(out) == len(set(out)), "an item was handed out twice"
        assert set(out) == {new.sequence for new, _ in inserts if new.key is not None}
        for new, task in inserts:
            assert task.cancelled() or task.result() == (new.key is not None)
        keys = {new.sequence: new.key for new, _ in inserts}
        for task in samples:
            if not task.cancelled():
                taken = [keys[item.sequence] for item in task.result()]
                assert taken == sorted(taken), "not first in, first out"
        assert_adds_up(table)
        assert table.num_items == table.num_bytes == 0

    run(main())
