"""Thousands of environments as a few NumPy arrays: points that steer to the middle of a square.

    shoal envs check examples/batch_env.py:Points --envs 4096
    shoal train examples/batch_env.py:Points --envs-per-actor 8192

A class or function with a parameter `num_envs` makes all copies at once. The same shape of code does for JAX
or torch on a GPU: `reset` and `step` may return their arrays as they are, see `docs/environments.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class Points(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Positions and velocities in [-1, 1]; the action is a push. Near the middle an episode is won."""

    # The step after the end of an episode ignores the action and shows the first observation of the next one.
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, max_steps: int = 200) -> None:
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.single_observation_space = Box(-1, 1, (4,), np.float32)
        self.single_action_space = Box(-1, 1, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._state = np.zeros((num_envs, 4), np.float32)
        self._num_steps = np.zeros(num_envs, np.int64)
        self._done = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(np.ones(self.num_envs, np.bool_))
        self._done = np.zeros(self.num_envs, np.bool_)
        return self._state.copy(), {}

    def step(self, actions: np.ndarray) -> Arrays:
        begins = self._done
        position, velocity = self._state[:, :2], self._state[:, 2:]
        np.clip(0.95 * velocity + 0.05 * actions, -1, 1, out=velocity)
        np.clip(position + 0.2 * velocity, -1, 1, out=position)
        self._num_steps += 1
        distance = np.linalg.norm(position, axis=1)
        reward = -0.05 * distance
        terminated = (distance < 0.1) & ~begins
        truncated = (self._num_steps >= self.max_steps) & ~terminated & ~begins
        reward[terminated] += 1.0
        reward[begins] = 0.0
        self._begin(begins)
        self._done = terminated | truncated
        return self._state.copy(), reward, terminated, truncated, {}

    def _begin(self, begins: np.ndarray) -> None:
        num = int(np.count_nonzero(begins))
        angle = self.np_random.uniform(0, 2 * np.pi, num)
        start = 0.9 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        self._state[begins] = np.concatenate([start, np.zeros((num, 2))], axis=1)
        self._num_steps[begins] = 0
