"""Small tasks of every kind of space, each learned in seconds: what defaults must be able to do.

Each says what a random policy earns. Episodes are short, so that returns come soon.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EPISODE = 10


class _Rounds(gym.Env[Any, Any]):
    """`EPISODE` rounds: shows something, and rewards each answer to it on its own."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._round = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._reward(action)
        self._round += 1
        return self._show(), reward, self._round == EPISODE, False, {}

    def _show(self) -> Any:
        raise NotImplementedError

    def _reward(self, action: Any) -> float:
        raise NotImplementedError


class DictTask(_Rounds):
    """The action is to be the category, plus one if the number is above 0. At random 2.5 of 10."""

    observation_space = spaces.Dict({"category": spaces.Discrete(4), "number": spaces.Box(-1.0, 1.0, (1,))})
    action_space = spaces.Discrete(4)

    def _show(self) -> Any:
        self._category = int(self.np_random.integers(4))
        number = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self._answer = (self._category + int(number[0] > 0)) % 4
        return {"category": self._category, "number": number}

    def _reward(self, action: Any) -> float:
        return float(action == self._answer)


class GridTask(_Rounds):
    """A grid of zeros with a single one: in which quarter is it? At random 2.5 of 10."""

    observation_space = spaces.Box(0, 1, (6, 6), np.uint8)
    action_space = spaces.Discrete(4)

    def _show(self) -> Any:
        row, column = self.np_random.integers(6, size=2)
        self._answer = 2 * (row >= 3) + (column >= 3)
        grid = np.zeros((6, 6), np.uint8)
        grid[row, column] = 1
        return grid

    def _reward(self, action: Any) -> float:
        return float(action == self._answer)


class OffsetBoxTask(_Rounds):
    """The action, from 10 to 30, is to be 20 + 8 x. A round is worth 1 at best, -1 at worst."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(10.0, 30.0, (1,))

    def _show(self) -> Any:
        self._x = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._x

    def _reward(self, action: Any) -> float:
        return 1.0 - min(2.0, abs(float(action[0]) - (20.0 + 8.0 * float(self._x[0]))) / 5.0)


class MultiDiscreteTask(_Rounds):
    """Both elements of the action are to be those shown. At random 2.9 of 10."""

    observation_space = spaces.MultiDiscrete([3, 4])
    action_space = spaces.MultiDiscrete([3, 4])

    def _show(self) -> Any:
        self._shown = self.np_random.integers([3, 4])
        return self._shown

    def _reward(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) == self._shown))


class RecallTask(gym.Env[Any, Any]):
    """A cue at the first of 30 steps; the last action is to be the cue. At random 0.5; without memory too."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)
    length = 30

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_over = self._step == self.length
        reward = float(is_over and action == self._cue)
        return self._show(), reward, is_over, False, {}

    def _show(self) -> Any:
        cue = 2.0 * self._cue - 1.0 if self._step == 0 else 0.0
        return np.array([cue, float(self._step == self.length - 1)], np.float32)
