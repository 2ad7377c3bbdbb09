"""Which requests make a batch, and when. The clock is the test's."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.batcher import Batcher, Request
from services.inference.session import Session
from tests.unit.inference.tracer import SPEC


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def request(num_rows: int, submitted_s: float = 100.0) -> Request:
    return Request(Session(SPEC, num_rows), {}, np.zeros(num_rows, np.bool_), False, submitted_s)


class WouldWait(Exception):
    pass


class NoWaiting(threading.Condition):
    def wait(self, timeout: float | None = None) -> bool:
        raise WouldWait


def due(batcher: Batcher) -> list[Request]:
    """What `take` returns at this moment; empty if it would wait."""
    batcher._condition = NoWaiting()
    try:
        return batcher.take() or []
    except WouldWait:
        return []


def rows(batch: list[Request]) -> list[int]:
    return [each.num_rows for each in batch]


def test_everything_that_waits_is_one_batch() -> None:
    batcher = Batcher(max_batch=100)
    for num_rows in (3, 5, 7):
        batcher.submit(request(num_rows))
    assert rows(due(batcher)) == [3, 5, 7]
    assert due(batcher) == []


def test_a_request_is_never_split_and_keeps_its_turn() -> None:
    batcher = Batcher(max_batch=10)
    for num_rows in (6, 6, 4, 10, 1):
        batcher.submit(request(num_rows))
    # The 4 would fit into the first batch, but not before the 6 that came earlier.
    assert [rows(due(batcher)) for _ in range(4)] == [[6], [6, 4], [10], [1]]


def test_a_request_larger_than_any_batch_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="11 rows cannot fit a batch of 10"):
        Batcher(max_batch=10).submit(request(11))


def test_by_default_the_first_request_is_due_at_once() -> None:
    batcher = Batcher(max_batch=10)
    batcher.submit(request(1))
    assert rows(due(batcher)) == [1]


def test_min_batch_waits_for_more_rows_up_to_the_limit() -> None:
    clock = FakeClock()
    batcher = Batcher(max_batch=100, min_batch=8, max_wait_s=0.5, clock=clock)
    batcher.submit(request(3))
    assert due(batcher) == []
    clock.now_s += 0.25
    batcher.submit(request(3, clock.now_s))
    assert due(batcher) == []
    batcher.submit(request(2, clock.now_s))
    assert rows(due(batcher)) == [3, 3, 2]


def test_min_batch_waits_no_longer_than_max_wait_after_the_oldest() -> None:
    clock = FakeClock()
    batcher = Batcher(max_batch=100, min_batch=8, max_wait_s=0.5, clock=clock)
    batcher.submit(request(3))
    clock.now_s += 0.4
    batcher.submit(request(1, clock.now_s))
    assert due(batcher) == []
    clock.now_s += 0.1
    assert rows(due(batcher)) == [3, 1]


def test_when_all_who_are_left_wait_nobody_waits_for_the_vanished() -> None:
    clock = FakeClock()
    batcher = Batcher(max_batch=100, min_batch=8, max_wait_s=1000.0, clock=clock)
    batcher.expect_at_most(12)
    batcher.submit(request(4))
    assert due(batcher) == []
    batcher.expect_at_most(4)
    assert rows(due(batcher)) == [4]


def test_the_abandoned_are_skipped_and_take_no_room() -> None:
    batcher = Batcher(max_batch=10)
    gone, stays = request(8), request(8)
    batcher.submit(gone)
    batcher.submit(stays)
    gone.abandoned = True
    assert due(batcher) == [stays]


def test_only_abandoned_requests_are_no_batch() -> None:
    batcher = Batcher(max_batch=10)
    gone = request(8)
    batcher.submit(gone)
    gone.abandoned = True
    assert due(batcher) == []
    batcher.submit(request(2))
    assert rows(due(batcher)) == [2]


@given(
    st.lists(st.tuples(st.integers(1, 16), st.booleans()), max_size=40),
    st.lists(st.booleans(), max_size=40),
)
def test_every_request_is_taken_once_in_order_within_the_limit(
    arrivals: list[tuple[int, bool]], takes: list[bool]
) -> None:
    batcher = Batcher(max_batch=16)
    wanted, taken = [], []
    for index, (num_rows, abandoned) in enumerate(arrivals):
        arrived = request(num_rows)
        batcher.submit(arrived)
        arrived.abandoned = abandoned
        if not abandoned:
            wanted.append(arrived)
        if index < len(takes) and takes[index]:
            taken.append(due(batcher))
    while batch := due(batcher):
        taken.append(batch)
    assert all(sum(rows(batch)) <= 16 for batch in taken)
    assert [each for batch in taken for each in batch] == wanted


def test_take_sleeps_until_there_is_work_and_ends_with_close() -> None:
    batcher = Batcher(max_batch=10)
    batches: queue.Queue[list[Request] | None] = queue.Queue()

    def model() -> None:
        while (batch := batcher.take()) is not None:
            batches.put(batch)
        batches.put(None)

    thread = threading.Thread(target=model)
    thread.start()
    first, second = request(2), request(3)
    batcher.submit(first)
    assert batches.get(timeout=10) == [first]
    batcher.submit(second)
    assert batches.get(timeout=10) == [second]
    batcher.close()
    assert batches.get(timeout=10) is None
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_take_wakes_when_the_wait_for_more_rows_is_over() -> None:
    batcher = Batcher(max_batch=10, min_batch=10, max_wait_s=0.001)
    waiting = request(2, submitted_s=0.0)
    batcher.submit(waiting)
    assert batcher.take() == [waiting]
