"""Whose turn it is: inserts and samples that have to wait, each side in order of arrival, with deadlines.

Every table has one and is called back by it; all of it runs on the event loop. Nothing is ever between two
hands:
- an insert that waits is stored by whoever makes that possible, so nobody can take its place;
- a sample that waits is only woken, and takes its items when it runs, so a sampler that is cancelled in the
  meantime has taken nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from services.replay.tables import DRAINING, Insertion, Ledger
from shoal.errors import UnavailableError
from shoal.metrics import Clock

T = TypeVar("T")


class Gate:
    """Asks its table who may go (`may_insert`, `may_sample`) and has it act (`store` sets `first_key`).

    Counts on the ledger who waited, for how long, and who gave up.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        may_insert: Callable[[Insertion], bool],
        store: Callable[[Insertion], None],
        may_sample: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._may_insert = may_insert
        self._store = store
        self._may_sample = may_sample
        self._inserters: deque[tuple[Insertion, _Waiter]] = deque()
        self._samplers: deque[_Waiter] = deque()
        self._inserts_stopped = False
        self._samples_stopped = False

    async def insert(self, insertion: Insertion, timeout_s: float) -> bool:
        """False if its turn did not come in time. Raises UnavailableError once inserts have stopped."""
        if self._inserts_stopped:
            raise UnavailableError(DRAINING)
        if not self._inserters and self._may_insert(insertion):
            self._store(insertion)
            self._wake_sampler()
            return True
        if timeout_s > 0:
            await self._wait_to_insert(insertion, timeout_s)
            if insertion.first_key is not None:
                return True
            if self._inserts_stopped:
                raise UnavailableError(DRAINING)
        self._ledger.num_insert_timeouts += 1
        return False

    async def sample(self, take: Callable[[], T], timeout_s: float) -> T | None:
        """What `take` returns, called when its turn has come; None if that did not happen in time.

        Raises UnavailableError once samples have stopped.
        """
        if self._samples_stopped:
            raise UnavailableError(DRAINING)
        if not self._samplers and self._may_sample():
            return self._let_take(take)
        if timeout_s > 0:
            waiter = _Waiter(timeout_s)
            self._samplers.append(waiter)
            self._ledger.num_sample_waits += 1
            started = self._clock()
            try:
                in_time = True
                while in_time:
                    in_time = await waiter.woken()
                    if self._samples_stopped:
                        raise UnavailableError(DRAINING)
                    # What it was woken for may be gone again.
                    if self._samplers[0] is waiter and self._may_sample():
                        return self._let_take(take)
            finally:
                waiter.close()
                self._ledger.sample_wait_s += self._clock() - started
                self._samplers.remove(waiter)
                self._wake_sampler()
        self._ledger.num_sample_timeouts += 1
        return None

    def changed(self) -> None:
        """The table changed otherwise than by `store` or a `take`: somebody's turn may have come."""
        self._admit()
        self._wake_sampler()

    def stop_inserts(self) -> None:
        """Ends waiting inserts and refuses new ones, for good."""
        self._inserts_stopped = True
        for _, waiter in self._inserters:
            waiter.wake()

    def stop_samples(self) -> None:
        """Ends waiting samples and refuses new ones, for good."""
        self._samples_stopped = True
        for waiter in self._samplers:
            waiter.wake()

    async def _wait_to_insert(self, insertion: Insertion, timeout_s: float) -> None:
        waiter = _Waiter(timeout_s)
        place = (insertion, waiter)
        self._inserters.append(place)
        self._ledger.num_insert_waits += 1
        started = self._clock()
        try:
            await waiter.woken()
        finally:
            waiter.close()
            self._ledger.insert_wait_s += self._clock() - started
            if insertion.first_key is None:
                self._inserters.remove(place)
                # It may have been the large one at the head that kept smaller ones waiting.
                self._admit()
                self._wake_sampler()

    def _let_take(self, take: Callable[[], T]) -> T:
        taken = take()
        self._admit()
        return taken

    def _admit(self) -> None:
        """Store what waits, in order of arrival, as far as it may go."""
        while self._inserters and not self._inserts_stopped:
            insertion, waiter = self._inserters[0]
            if not self._may_insert(insertion):
                return
            self._inserters.popleft()
            self._store(insertion)
            waiter.wake()

    def _wake_sampler(self) -> None:
        if self._samplers and self._may_sample():
            self._samplers[0].wake()


class _Waiter:
    """A wait that others can end, again and again until its time is up."""

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._expired = False
        self._timer = self._loop.call_later(timeout_s, self._expire)

    async def woken(self) -> bool:
        """Returns at the next `wake`, or when the time is up: then False."""
        await self._end
        self._end = self._loop.create_future()
        return not self._expired

    def wake(self) -> None:
        if not self._end.done():
            self._end.set_result(None)

    def close(self) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        self.wake()
