"""The gate by itself: turns, deadlines, being woken for nothing, cancellation, and who counts as waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.gate import Gate
from services.replay.tables import Insertion, Ledger
from shoal.errors import UnavailableError
from tests.unit.replay.payloads import LIFE
from tests.unit.replay.virtual_time import run, settle


class Table:
    """Numbers, at most `room` of them; sampled while there are at least `min_items`, and `open`."""

    def __init__(self, room: int = 2, min_items: int = 1) -> None:
        self.room = room
        self.min_items = min_items
        self.open = True
        self.items: list[int] = []
        self.stored: list[int] = []
        self.ledger = Ledger()
        self.gate = Gate(
            self.ledger,
            asyncio.get_running_loop().time,
            may_insert=lambda _: len(self.items) < self.room,
            store=self._store,
            may_sample=lambda: self.open and len(self.items) >= self.min_items,
        )

    def insert(self, number: int, timeout_s: float = 60.0) -> Coroutine[Any, Any, bool]:
        return self.gate.insert(an(number), timeout_s)

    def sample(self, timeout_s: float = 60.0) -> Coroutine[Any, Any, int | None]:
        return self.gate.sample(lambda: self.items.pop(0), timeout_s)

    def _store(self, insertion: Insertion) -> None:
        insertion.first_key = len(self.stored) + 1
        self.items.append(insertion.sequence)
        self.stored.append(insertion.sequence)


def an(number: int) -> Insertion:
    return Insertion(LIFE, number, (), ())


def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_who_need_not_wait_does_not() -> None:
    async def main() -> None:
        table = Table()
        assert await table.insert(1)
        assert await table.sample() == 1
        assert now() == 0.0
        assert table.ledger == Ledger()

    run(main())


def test_waits_are_counted_on_the_side_that_waits() -> None:
    async def main() -> None:
        table = Table(room=1)
        sampler = start(table.sample())
        await asyncio.sleep(2.0)
        await table.insert(1)
        assert await sampler == 1
        await table.insert(2)
        inserter = start(table.insert(3))
        await asyncio.sleep(5.0)
        assert await table.sample() == 2
        assert await inserter
        ledger = table.ledger
        assert (ledger.num_sample_waits, ledger.num_insert_waits) == (1, 1)
        assert (ledger.sample_wait_s, ledger.insert_wait_s) == (pytest.approx(2.0), pytest.approx(5.0))
        assert ledger.num_sample_timeouts == ledger.num_insert_timeouts == 0

    run(main())


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 3.0])
def test_deadlines(timeout_s: float) -> None:
    async def main() -> None:
        table = Table(room=0)
        assert await table.sample(timeout_s) is None
        assert not await table.insert(1, timeout_s)
        waited = max(0.0, timeout_s)
        assert now() == pytest.approx(2 * waited)
        ledger = table.ledger
        assert ledger.num_sample_timeouts == ledger.num_insert_timeouts == 1
        # Without time nobody waits.
        assert ledger.num_sample_waits == ledger.num_insert_waits == (waited > 0)

    run(main())


def test_sampler_woken_for_nothing_waits_on_until_its_own_deadline() -> None:
    async def main() -> None:
        table = Table()
        patient = start(table.sample(10.0))
        for _ in range(3):
            await asyncio.sleep(2.0)
            await table.insert(1)
            # Gone again before the sampler runs.
            table.items.clear()
        await asyncio.sleep(1.0)
        assert not patient.done()
        assert await patient is None
        assert now() == pytest.approx(10.0)
        assert table.ledger.num_sample_waits == table.ledger.num_sample_timeouts == 1
        assert table.ledger.sample_wait_s == pytest.approx(10.0)

    run(main())


def test_time_that_runs_out_between_being_woken_and_running_is_noticed() -> None:
    async def main() -> None:
        table = Table()
        sampler = start(table.sample(5.0))
        await settle()

        def wake_for_nothing() -> None:
            table.items.append(1)
            table.gate.changed()
            table.items.clear()

        # In the same moment as the deadline, before it.
        asyncio.get_running_loop().call_at(5.0 - 1e-12, wake_for_nothing)
        assert await sampler is None
        assert now() == pytest.approx(5.0)

    run(main())


def test_samplers_are_served_in_order_of_arrival() -> None:
    async def main() -> None:
        table = Table(room=9)
        waiting = [start(table.sample()) for _ in range(3)]
        await settle()
        for number in range(3):
            await table.insert(number)
        # Comes while the first in line is woken but has not run yet: it must not overtake.
        late = start(table.sample())
        assert [await task for task in waiting] == [0, 1, 2]
        await table.insert(3)
        assert await late == 3

    run(main())


def test_sampler_that_runs_out_of_time_does_not_overtake_the_one_that_was_woken() -> None:
    async def main() -> None:
        table = Table()

        def insert_now() -> None:
            with pytest.raises(StopIteration):
                table.insert(0).send(None)

        first = start(table.sample())
        second = start(table.sample(5.0))
        await settle()
        # In the same moment, just after the second one's time is up.
        asyncio.get_running_loop().call_later(5.0, insert_now)
        assert await second is None
        assert await first == 0

    run(main())


def test_cancelled_sampler_takes_nothing_even_after_it_was_woken() -> None:
    async def main() -> None:
        table = Table()
        first = start(table.sample())
        second = start(table.sample())
        await settle()
        await table.insert(0)
        first.cancel()
        assert await second == 0
        assert first.cancelled()

    run(main())


def test_cancelled_insert_is_stored_never_or_once() -> None:
    async def main() -> None:
        table = Table(room=1)
        await table.insert(0)
        withdrawn, granted = an(1), an(2)
        first = start(table.gate.insert(withdrawn, 60.0))
        second = start(table.gate.insert(granted, 60.0))
        await settle()
        first.cancel()
        await settle()
        assert await table.sample() == 0
        # Stored by the sampler above, cancelled before its own task ran: the key tells.
        second.cancel()
        await settle()
        assert first.cancelled()
        assert second.cancelled()
        assert withdrawn.first_key is None
        assert granted.first_key == 2
        assert table.items == [2]

    run(main())


def test_other_changes_let_both_sides_go() -> None:
    async def main() -> None:
        table = Table(room=0)
        table.open = False
        inserters = [start(table.insert(number)) for number in (1, 2, 3)]
        await settle()
        samplers = [start(table.sample()) for _ in range(2)]
        await settle()
        table.room = 2
        table.gate.changed()
        await settle()
        assert table.items == [1, 2]
        assert not any(task.done() for task in (*samplers, inserters[2]))
        table.open = True
        table.gate.changed()
        assert [await task for task in samplers] == [1, 2]
        assert all([await task for task in inserters])
        assert table.items == [3]

    run(main())


def test_insert_that_gives_up_lets_those_behind_it_in_and_wakes_samplers() -> None:
    async def main() -> None:
        large = an(1)
        table = Table()
        gate = Gate(
            table.ledger,
            now,
            may_insert=lambda insertion: insertion is not large,
            store=table._store,
            may_sample=lambda: bool(table.items),
        )
        first = start(gate.insert(large, 5.0))
        await settle()
        second = start(gate.insert(an(2), 60.0))
        sampler = start(gate.sample(lambda: table.items.pop(), 60.0))
        assert not await first
        assert await second
        assert await sampler == 2
        assert now() == pytest.approx(5.0)

    run(main())


def test_whoever_takes_last_wakes_the_next_in_line() -> None:
    async def main() -> None:
        table = Table(min_items=2)
        samplers = [start(table.sample()) for _ in range(2)]
        await settle()
        await table.insert(1)
        await settle()
        assert not any(task.done() for task in samplers)
        await table.insert(2)
        assert await samplers[0] == 1
        assert not samplers[1].done()
        await table.insert(3)
        assert await samplers[1] == 2

    run(main())


def test_stopping_ends_all_who_wait_and_stores_nothing_more() -> None:
    async def main() -> None:
        table = Table(room=0)
        inserters = [start(table.insert(number)) for number in (1, 2)]
        samplers = [start(table.sample()) for _ in range(2)]
        await settle()
        table.gate.stop_inserts()
        table.room = 9
        table.gate.changed()
        table.gate.stop_samples()
        for task in (*inserters, *samplers):
            with pytest.raises(UnavailableError, match="draining"):
                await task
        assert table.stored == []
        for refused in (table.insert(3), table.sample()):
            with pytest.raises(UnavailableError):
                await refused
        assert table.ledger.num_insert_timeouts == table.ledger.num_sample_timeouts == 0

    run(main())


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from([0.0, 1.0, 10.0])),
        st.tuples(st.just("sample"), st.sampled_from([0.0, 1.0, 10.0])),
        st.tuples(st.sampled_from(["cancel", "pass", "room", "open"]), st.integers(0, 6)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_nobody_overtakes_and_nothing_is_lost(operations: list[tuple[str, float]]) -> None:
    """Inserts are stored in order of arrival, samples get them in order of theirs, whatever happens."""

    async def main() -> None:
        table = Table()
        inserts: list[tuple[Insertion, asyncio.Task[bool]]] = []
        samples: list[asyncio.Task[int | None]] = []
        for what, number in operations:
            if what == "insert":
                new = an(len(inserts))
                inserts.append((new, start(table.gate.insert(new, number))))
            elif what == "sample":
                samples.append(start(table.sample(number)))
            elif what == "pass":
                await asyncio.sleep(number / 4)
            elif what == "room":
                table.room = int(number)
                table.gate.changed()
            elif what == "open":
                table.open = number > 2
                table.gate.changed()
            elif tasks := [task for _, task in inserts] + samples:
                tasks[int(number) * 7 % len(tasks)].cancel()
        if tasks := [task for _, task in inserts] + samples:
            await asyncio.wait(tasks)
        assert table.stored == sorted(table.stored)
        assert table.stored == [new.sequence for new, _ in inserts if new.first_key is not None]
        for new, task in inserts:
            assert task.cancelled() or task.result() == (new.first_key is not None)
        taken = [task.result() for task in samples if not task.cancelled() and task.result() is not None]
        assert sorted(taken) + table.items == table.stored
        # Nobody is left behind in the lines.
        table.room, table.open = 1000, True
        assert await table.insert(len(inserts), 0.0)
        assert await table.sample(0.0) is not None

    run(main())
