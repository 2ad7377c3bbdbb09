"""Pauses between two attempts that grow, with jitter. Used by everything that dials again.

Plain arithmetic: the caller sleeps. Not shared between tasks.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays of about initial_s, 2 x initial_s, 4 x ... and never above max_s."""

    def __init__(
        self,
        initial_s: float = 0.05,
        max_s: float = 2.0,
        jitter: float = 0.2,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`jitter` is the share by which a delay is made shorter or longer, so that peers spread out."""
        if initial_s <= 0 or max_s <= 0 or not 0 <= jitter <= 1:
            raise ValueError(f"initial_s {initial_s} and max_s {max_s} must be > 0, jitter {jitter} in 0..1")
        self._initial_s = min(initial_s, max_s)
        self._max_s = max_s
        self._jitter = jitter
        self._uniform = uniform
        self._next_s = self._initial_s

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        delay = self._next_s * (1.0 + self._uniform(-self._jitter, self._jitter))
        self._next_s = min(2.0 * self._next_s, self._max_s)
        return min(delay, self._max_s)

    def reset(self) -> None:
        """Call after a success."""
        self._next_s = self._initial_s
