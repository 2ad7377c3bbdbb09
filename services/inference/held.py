"""Steps of synchronous actors that wait for newer weights before they go to the batcher.

Owned by one engine. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.inference.batcher import Request
from shoal.errors import UnavailableError
from shoal.metrics import Clock


@dataclass(frozen=True)
class _Hold:
    min_version: int
    # Ends the wait; None if there is no limit.
    timer: asyncio.TimerHandle | None


class HeldSteps:
    """Each leaves by the version it waits for, by the end of its patience, or because nobody wants it."""

    def __init__(self, submit: Callable[[Request], None], clock: Clock) -> None:
        self._submit = submit
        self._clock = clock
        self._holds: dict[Request, _Hold] = {}
        self._refusal = ""

    def hold(self, request: Request, min_version: int) -> None:
        """Raises UnavailableError after `refuse`."""
        if self._refusal:
            raise UnavailableError(self._refusal)
        patience_s, timer = request.session.max_wait_s, None
        if patience_s > 0:
            timer = asyncio.get_running_loop().call_later(patience_s, self._let_go, request)
        self._holds[request] = _Hold(min_version, timer)

    def reached(self, version: int) -> None:
        """Weights of this version are there."""
        for request in [held for held, hold in self._holds.items() if hold.min_version <= version]:
            self._let_go(request)

    def forget(self, request: Request) -> bool:
        """It is not to be answered any more. False if it was not held."""
        hold = self._holds.pop(request, None)
        if hold is not None and hold.timer is not None:
            hold.timer.cancel()
        return hold is not None

    def refuse(self, text: str) -> None:
        """Whoever waits gets UnavailableError, and whoever comes."""
        self._refusal = text
        for request in self._holds:
            request.session.fail(text)

    def _let_go(self, request: Request) -> None:
        if self.forget(request):
            # Latencies are of the server: waiting for the learner is not.
            request.submitted_s = self._clock()
            self._submit(request)
