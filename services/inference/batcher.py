"""Turns waiting requests into batches: whatever waits when the model is free is the next batch.

The event loop submits, the model thread takes; everything is guarded by one condition. No gRPC.
A batch never waits for a particular actor, so actors that vanish stall nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from services.inference.session import Session
from shoal.metrics import Clock
from shoal.records import Columns


@dataclass(slots=True, eq=False)
class Request:
    """One step of one session: `num_rows` environments."""

    session: Session
    observation: Columns
    first: np.ndarray
    # Answer with the state before this step, too.
    starts_unroll: bool
    submitted_s: float
    # Nobody waits for the answer any more.
    abandoned: bool = False

    @property
    def num_rows(self) -> int:
        return self.session.num_envs


class Batcher:
    """FIFO of requests, taken as whole requests of together at most `max_batch` rows."""

    def __init__(
        self, max_batch: int, min_batch: int = 1, max_wait_s: float = 0.0, clock: Clock = time.perf_counter
    ) -> None:
        self._max_batch = max_batch
        self._min_batch = min_batch
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._condition = threading.Condition(threading.Lock())
        self._queue: deque[Request] = deque()
        self._num_rows = 0
        self._possible_rows = max_batch
        self._closed = False

    def submit(self, request: Request) -> None:
        """Queue a request of at most `max_batch` rows."""
        if request.num_rows > self._max_batch:
            raise ValueError(f"a request of {request.num_rows} rows cannot fit a batch of {self._max_batch}")
        with self._condition:
            self._queue.append(request)
            self._num_rows += request.num_rows
            self._condition.notify()

    def expect_at_most(self, num_rows: int) -> None:
        """All sessions together have so many rows: once they all wait, there is nothing to wait for."""
        with self._condition:
            self._possible_rows = num_rows
            self._condition.notify()

    def take(self) -> list[Request] | None:
        """The next batch, as soon as there is one worth running. None once closed."""
        with self._condition:
            while not self._closed:
                wait_s = self._wait_s()
                if wait_s is None or wait_s > 0:
                    self._condition.wait(wait_s)
                elif batch := self._pop():
                    return batch
            return None

    def close(self) -> None:
        """Wakes and ends `take`; what is still queued stays unanswered."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _wait_s(self) -> float | None:
        """Seconds until the queue is due: 0 now, None when it is empty."""
        if not self._queue:
            return None
        if self._num_rows >= min(self._min_batch, self._possible_rows):
            return 0.0
        return max(0.0, self._queue[0].submitted_s + self._max_wait_s - self._clock())

    def _pop(self) -> list[Request]:
        batch: list[Request] = []
        room = self._max_batch
        while self._queue and (self._queue[0].abandoned or self._queue[0].num_rows <= room):
            request = self._queue.popleft()
            self._num_rows -= request.num_rows
            if not request.abandoned:
                batch.append(request)
                room -= request.num_rows
        return batch
