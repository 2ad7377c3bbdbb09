"""An environment that needs nothing to render, in a file of its own as a user has it: named by its path."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Countdown(gym.Env[np.ndarray, int]):
    """Ends after `length` steps; each earns 1. Its picture grows brighter, step by step, with odd sides."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._length = length
        self._at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return self._shown(), 1.0, self._at >= self._length, False, {}

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        return np.full((31, 47, 3), 40 * self._at, np.uint8)

    def _shown(self) -> np.ndarray:
        return np.array([self._at], np.float32)


def blind(length: int = 4) -> Countdown:
    """Takes no render_mode."""
    return Countdown(length)


def broken(render_mode: str | None = None) -> Countdown:
    env = Countdown(4, render_mode)
    env.render = lambda: 1 / 0  # type: ignore[method-assign]
    return env


def batch(num_envs: int) -> gym.vector.SyncVectorEnv:
    return gym.vector.SyncVectorEnv([Countdown] * num_envs)


class Twice(gym.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Rewards twice."""

    def step(self, action: int) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, 2 * float(reward), terminated, truncated, info


class Duel:
    """A game of PettingZoo's parallel kind: two reds and a blue, who leaves after half of the steps."""

    metadata = {"render_fps": 20}  # noqa: RUF012
    possible_agents = ("red_0", "red_1", "blue_0")

    def __init__(self, length: int = 6, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.agents: list[str] = []
        self._length = length
        self._at = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return Countdown.observation_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        return Countdown.action_space

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._at = list(self.possible_agents), 0
        return self._of_all(np.zeros(1, np.float32)), self._of_all({})

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self._at += 1
        observations = self._of_all(np.array([self._at], np.float32))
        rewards, infos, truncated = self._of_all(1.0), self._of_all({}), self._of_all(False)
        terminated = {
            agent: self._at >= (self._length // 2 if agent == "blue_0" else self._length)
            for agent in self.agents
        }
        self.agents = [agent for agent in self.agents if not terminated[agent]]
        return observations, rewards, terminated, truncated, infos

    def render(self) -> Any:
        return None if self.render_mode is None else np.full((32, 48, 3), 20 * self._at, np.uint8)

    def close(self) -> None: ...

    def _of_all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)
