"""An environment as a user writes one, with a Dict observation; tests copy this file out of the package."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Lamps(gym.Env[dict[str, Any], np.ndarray]):
    """Press the lamps that the picture shows as lit; how well it went is shown as numbers."""

    def __init__(self, num_lamps: int = 3, length: int = 12) -> None:
        self.observation_space = spaces.Dict(
            picture=spaces.Box(0, 255, (num_lamps, 8), np.uint8),
            score=spaces.Box(-np.inf, np.inf, (2,), np.float64),
            hint=spaces.Discrete(num_lamps, start=1),
        )
        self.action_space = spaces.MultiDiscrete([2] * num_lamps)
        self._length = length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._time, self._score = 0, 0.0
        return self._shown(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward = float(np.mean(action == self._lit))
        self._time += 1
        self._score += reward
        return self._shown(), reward, False, self._time == self._length, {}

    def _shown(self) -> dict[str, Any]:
        space = self.observation_space
        assert isinstance(space, spaces.Dict)
        num_lamps = len(space["picture"].sample())
        self._lit = self.np_random.integers(2, size=num_lamps)
        return {
            "picture": np.repeat(255 * self._lit.astype(np.uint8)[:, np.newaxis], 8, axis=1),
            "score": np.array([self._score, self._time], np.float64),
            "hint": np.int64(1 + self._time % num_lamps),
        }
