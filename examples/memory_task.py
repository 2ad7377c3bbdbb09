"""A task that needs memory: a cue is shown once, and asked for ten steps later.

A batch environment in NumPy, in the form that `env.id: examples/memory_task.py:make` takes: a function with a
parameter `num_envs` that returns a Gymnasium `VectorEnv`. The return is 1 for the right answer, else 0:
without memory it is 1 / `num_cues` on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class MemoryTask(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Shows the cue as one-hot at the first step, then zeros; the last element asks for the answer."""

    def __init__(self, num_envs: int, num_cues: int = 4, delay: int = 10) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.single_action_space = spaces.Discrete(num_cues)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._num_cues = num_cues
        self._delay = delay
        self._cue = np.zeros(num_envs, np.int64)
        self._time = np.zeros(num_envs, np.int64)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._random = np.random.default_rng(seed)
        self._begin(np.ones(self.num_envs, np.bool_))
        return self._shown(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        over = self._time > self._delay
        asked = self._time == self._delay
        self._time += 1
        reward = (asked & (actions == self._cue)).astype(np.float32)
        self._begin(over)
        return self._shown(), reward, asked, np.zeros(self.num_envs, np.bool_), {}

    def _begin(self, where: np.ndarray) -> None:
        self._cue[where] = self._random.integers(self._num_cues, size=int(where.sum()))
        self._time[where] = 0

    def _shown(self) -> np.ndarray:
        shown = np.zeros((self.num_envs, self._num_cues + 1), np.float32)
        starting = np.flatnonzero(self._time == 0)
        shown[starting, self._cue[starting]] = 1.0
        shown[:, -1] = self._time == self._delay
        return shown


def make(num_envs: int, num_cues: int = 4, delay: int = 10) -> MemoryTask:
    return MemoryTask(num_envs, num_cues, delay)
