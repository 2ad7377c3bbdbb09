"""Says in the log whom the actor waits for, without flooding it.

Groups say when they begin and end to wait; `report` is called about once a second. Event loop only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

FIRST_S = 5.0
LONGEST_PAUSE_S = 60.0


class WaitLog:
    """One line per peer however many groups wait for it; the pauses between lines grow to a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, list[float]] = {}
        # Per peer: when the next line is due, and the pause after it.
        self._next: dict[str, tuple[float, float]] = {}

    @contextmanager
    def waiting_for(self, peer: str) -> Iterator[None]:
        since = self._clock()
        self._waiting.setdefault(peer, []).append(since)
        try:
            yield
        finally:
            waits = self._waiting[peer]
            waits.remove(since)
            if not waits:
                del self._waiting[peer]

    def report(self) -> None:
        now = self._clock()
        for peer, waits in self._waiting.items():
            waited = now - min(waits)
            due, pause = self._next.get(peer, (0.0, FIRST_S))
            if waited >= FIRST_S and now >= due:
                log.info("waiting for %s (%.0f s)", peer, waited)
                self._next[peer] = (now + pause, min(2 * pause, LONGEST_PAUSE_S))
