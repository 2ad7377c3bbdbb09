"""An environment of one's own in a file: walk to the goal on a grid, walls are masked.

    shoal envs check examples/own_env.py:GridWorld --set env.kwargs.size=7
    shoal train examples/own_env.py:GridWorld

`docs/environments.md` explains what an environment must do. This one is plain Gymnasium and knows nothing of
shoal.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

# Right, up, left, down.
MOVES = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])


class GridWorld(gym.Env[dict[str, np.ndarray], int]):
    """Start and goal are drawn for each episode; each step costs a little, the goal pays."""

    def __init__(self, size: int = 5, max_steps: int = 50) -> None:
        self.size = size
        self.max_steps = max_steps
        self.observation_space = spaces.Dict(
            {
                "position": spaces.Box(0, 1, (2,), np.float32),
                "goal": spaces.Box(0, 1, (2,), np.float32),
                # An entry of this name says which actions are allowed.
                "action_mask": spaces.MultiBinary(len(MOVES)),
            }
        )
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        start, goal = self.np_random.choice(self.size**2, size=2, replace=False)
        self._position = np.array(divmod(start, self.size))
        self._goal = np.array(divmod(goal, self.size))
        self._num_steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._position = np.clip(self._position + MOVES[action], 0, self.size - 1)
        self._num_steps += 1
        reached = bool((self._position == self._goal).all())
        reward = 1.0 if reached else -0.02
        # Two ends: the task is over (terminated), or only the time is (truncated).
        return self._observation(), reward, reached, not reached and self._num_steps >= self.max_steps, {}

    def _observation(self) -> dict[str, np.ndarray]:
        after = self._position + MOVES
        scale = max(self.size - 1, 1)
        return {
            "position": (self._position / scale).astype(np.float32),
            "goal": (self._goal / scale).astype(np.float32),
            "action_mask": ((after >= 0) & (after < self.size)).all(axis=1).astype(np.int8),
        }
