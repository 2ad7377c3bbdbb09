"""When a crashed process may start again, and when the run is given up.

Pure decisions over an injected clock; the supervisor keeps one `RestartPolicy` per process and acts on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 5.0
WINDOW_S = 600.0
# A process that lived this long was healthy: its next crash starts again with the first delay.
HEALTHY_AFTER_S = 10.0
# A process that never came up will hardly do so the twentieth time.
MAX_FAILED_STARTS = 3
# A process that fails by itself so often, each time soon after its start, will not stop doing so.
MAX_SHORT_LIVES = 5


@dataclass(frozen=True)
class Restart:
    """Start it again after a pause."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """It crashes too often; `reason` continues a sentence that starts with the process's name."""

    reason: str


class RestartPolicy:
    """Back-off and limit for one process. One caller at a time."""

    def __init__(self, max_restarts: int, now: Callable[[], float]) -> None:
        self._max_restarts = max_restarts
        self._now = now
        self._crashes: deque[float] = deque()
        self._delay_s = FIRST_DELAY_S
        self._ever_up = False
        self._failed_starts = 0
        self._short_lives = 0

    def came_up(self) -> None:
        """The process announced that it listens."""
        self._ever_up = True

    def crashed(self, lived_s: float, code: int) -> Restart | GiveUp:
        """The process ended after `lived_s` without having been asked to; `code` is negative for a signal."""
        now = self._now()
        self._crashes.append(now)
        while self._crashes[0] <= now - WINDOW_S:
            self._crashes.popleft()
        if len(self._crashes) > self._max_restarts:
            allowed = f"launch.max_restarts is {self._max_restarts}"
            return GiveUp(f"crashed {len(self._crashes)} times in ten minutes ({allowed})")
        if not self._ever_up:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                return GiveUp(f"crashed {self._failed_starts} times before it came up")
        if lived_s >= HEALTHY_AFTER_S:
            self._delay_s = FIRST_DELAY_S
            self._short_lives = 0
        elif code > 0:  # a signal comes from outside
            self._short_lives += 1
            if self._short_lives >= MAX_SHORT_LIVES:
                return GiveUp(f"crashed {self._short_lives} times within {HEALTHY_AFTER_S:g} s of its start")
        delay_s = self._delay_s
        self._delay_s = min(2 * self._delay_s, MAX_DELAY_S)
        return Restart(delay_s)
