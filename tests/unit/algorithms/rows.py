"""One environment's rows at random, with every way in which episodes end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Rows:
    """[T] or [T+1], in float64."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    first: np.ndarray
    value: np.ndarray

    @property
    def length(self) -> int:
        return len(self.reward)

    def end_of_episode(self, start: int) -> int:
        """The last step of the episode, or of the unroll, that step `start` belongs to."""
        done = self.terminated | self.truncated
        return next((t for t in range(start, self.length) if done[t]), self.length - 1)


def random_rows(rng: np.random.Generator, length: int, done_rate: float) -> Rows:
    """Gymnasium's next-step autoreset: after a done comes the final observation, then a first one."""
    terminated, truncated = np.zeros(length, bool), np.zeros(length, bool)
    first = np.zeros(length + 1, bool)
    first[0] = rng.random() < 0.3
    # A pending reset at row 0: the unroll before ended with a done.
    pending = not first[0] and rng.random() < 0.3
    for t in range(length):
        if pending:
            first[t + 1], pending = True, False
        elif rng.random() < done_rate:
            pending = True
            kind = rng.integers(3)
            terminated[t], truncated[t] = kind != 1, kind != 0
    # Of an autoreset step nothing counts: its reward is wild on purpose.
    reward = np.where(first[1:], 1e6, rng.normal(0.0, 2.0, length))
    return Rows(reward, terminated, truncated, first, rng.normal(0.0, 3.0, length + 1))


def stacked(rows: Sequence[Rows], name: str) -> torch.Tensor:
    """Side by side: [T, B] or [T+1, B]."""
    return torch.from_numpy(np.stack([getattr(row, name) for row in rows], axis=1))
