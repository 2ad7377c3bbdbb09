"""Which episode each slot of a batch is in, and which step of it: asked only when something broke.

Used by `shoal.envs.native`. Written at every step, so that is an append to a list; the rest is done a block
of steps at a time. One caller at a time.
"""

from __future__ import annotations

import numpy as np

# Steps that are summed up together; must fit in a byte.
_BLOCK = 64


class SlotLog:
    """Counts episodes and steps of E slots from the steps that showed a first observation."""

    def __init__(self, num: int) -> None:
        self._episode = np.ones(num, np.int64)
        self._began_at = np.zeros(num, np.int64)
        self._num_steps = 0
        self._block: list[np.ndarray] = []

    def add(self, first: np.ndarray) -> None:
        """One more step; `first` is kept and must not change any more."""
        self._block.append(first)
        if len(self._block) == _BLOCK:
            self._sum_up()

    def where(self, slot: int) -> tuple[int, int]:
        """Its episode, counted from 1, and its step of that, 0 for the first observation."""
        self._sum_up()
        return int(self._episode[slot]), self._num_steps - int(self._began_at[slot])

    def _sum_up(self) -> None:
        if not self._block:
            return
        first = np.stack(self._block).view(np.uint8)
        numbers = np.arange(1, len(first) + 1, dtype=np.uint8)[:, None]
        last = (first * numbers).max(axis=0)
        self._episode += first.sum(axis=0, dtype=np.uint8)
        np.copyto(self._began_at, self._num_steps + last.astype(np.int64), where=last > 0)
        self._num_steps += len(first)
        self._block.clear()
