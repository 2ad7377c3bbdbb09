"""How often broken environments may be started again, and with which seed.

Whoever starts environments again (`shoal.envs.workers`, `shoal.envs.multi_agent` and others) keeps one
`Restarts`, alone or with others. It decides and counts; the caller reports the fault and acts. Usable from
any thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from shoal.errors import UserError

# Some simulators take seeds of 31 bits only, and environments count on from theirs.
_MAX_SEED = 1 << 30


class Restarts:
    """Counts faults of the last `window_s` seconds against `max_restarts`."""

    def __init__(
        self, max_restarts: int, window_s: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._clock = clock
        self._recent: deque[float] = deque()
        self._counting = threading.Lock()
        # Since the beginning.
        self.num_restarts = 0

    def count(self, fault: str) -> None:
        """One more fault, told in a sentence without its full stop. Raises UserError beyond the limit."""
        with self._counting:
            now = self._clock()
            self._recent.append(now)
            while self._recent[0] <= now - self._window_s:
                self._recent.popleft()
            num_recent = len(self._recent)
            if num_recent <= self._max_restarts:
                self.num_restarts += 1
                return
        times = "once" if num_recent == 1 else f"{num_recent} times"
        raise UserError(
            f"environments broke {times} within {self._window_s:g} s and env.max_restarts is "
            f"{self._max_restarts}: mend the environment or raise the limit; the last: {fault}"
        )


def seed_after(seed: int, index: int, num_restarts: int) -> int:
    """Another seed for the environment `index` of those that got `seed`: the old one led to a fault."""
    return int(np.random.SeedSequence((seed, index, num_restarts)).generate_state(1)[0]) % _MAX_SEED
