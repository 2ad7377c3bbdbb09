"""A bandit whose paying arm changes with each episode; what it shows never changes.

Only the previous action and its reward tell which arm pays: without them every policy earns chance.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

NUM_ARMS = 3
NUM_STEPS = 10


class Bandit(gym.Env[np.ndarray, int]):
    """At best 9 of 10 on average, as the arm is found by trying; by chance 3.3."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(NUM_ARMS)
        self._arm = self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._arm, self._step = int(self.np_random.integers(NUM_ARMS)), 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.ones(1, np.float32), float(action == self._arm), self._step >= NUM_STEPS, False, {}
