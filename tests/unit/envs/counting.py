"""Environments for tests whose observations say where they are: (env, episode, step).

Importing this module registers them: `tests.unit.envs.counting:Counting-v0`. An environment's identity is the
seed of its first reset; from it follow the lengths of its episodes and whether they terminate or truncate.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.records import Trajectory

NUM_ACTIONS = 5


class CountingEnv(gym.Env[np.ndarray, int]):
    """Episodes of 1 to `max_length` steps; the reward encodes step and action."""

    def __init__(self, max_length: int = 7) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(NUM_ACTIONS)
        self._max_length = max_length
        self._tag = self._episode = -1
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._tag, self._episode = seed, -1
        self._episode += 1
        self._step = 0
        chance = np.random.default_rng((self._tag, self._episode))
        self._length = int(chance.integers(1, self._max_length + 1))
        self._terminates = bool(chance.integers(2))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        done = self._step >= self._length
        reward = float(self._step + 100 * int(action))
        return self._observation(), reward, done and self._terminates, done and not self._terminates, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._tag, self._episode, self._step], np.float32)


class CountingVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """The same natively vectorised, returning the same buffers again and again as fast simulators do."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, max_length: int = 7) -> None:
        self._envs = [CountingEnv(max_length) for _ in range(num_envs)]
        self.num_envs = num_envs
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = np.zeros((num_envs, 3), np.float32)
        self._rewards = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        for i, env in enumerate(self._envs):
            self._observations[i], _ = env.reset(seed=None if seed is None else seed + i)
        self._terminated[:] = self._truncated[:] = False
        return self._observations, {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        for i, env in enumerate(self._envs):
            if self._terminated[i] or self._truncated[i]:
                self._observations[i], _ = env.reset()
                self._rewards[i], self._terminated[i], self._truncated[i] = 0.0, False, False
            else:
                row = env.step(int(actions[i]))
                self._observations[i], self._rewards[i], self._terminated[i], self._truncated[i] = row[:4]
        return self._observations, self._rewards, self._terminated, self._truncated, {}


def check_rows(trajectory: Trajectory) -> None:
    """Consecutive rows of each environment are consecutive steps, across episodes."""
    observation = trajectory.columns["observation"]
    first = trajectory.columns["first"]
    step = observation[1:] - observation[:-1]
    assert (step[..., 0] == 0).all()
    np.testing.assert_array_equal(step[..., 1] == 1, first[1:])
    np.testing.assert_array_equal(observation[1:, :, 2] == 0, first[1:])
    np.testing.assert_array_equal(step[..., 2][~first[1:]], 1)


gym.register("Counting-v0", f"{__name__}:CountingEnv")
gym.register(
    "CountingNative-v0", f"{__name__}:CountingEnv", vector_entry_point=f"{__name__}:CountingVectorEnv"
)
