"""An Atari-shaped environment that costs next to nothing: frames of 84x84 bytes, made once, shown in turn.

`benchmarks.frames_env:AtariShaped-v0` shows one frame at a time, as the services stack them; with
`stacked: true` four of them, for systems that do not. Episodes end now and then; the picture moves, and
shrinks under LZ4 somewhat less than Pong does.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

ENV_ID = "AtariShaped-v0"
NUM_ACTIONS = 6
SIZE = 84
STACK = 4
# Shown in turn by all environments, each from another one on.
NUM_PICTURES = 61
MEAN_EPISODE = 1000


def pictures(num: int = NUM_PICTURES) -> np.ndarray:
    """[num, 84, 84]: a court with two paddles, a ball, and a score that changes."""
    frames = np.full((num, SIZE, SIZE), 87, np.uint8)
    frames[:, :14] = 52
    score = np.random.default_rng(1).integers(0, 256, (num, 8, 24), np.uint8)
    for t in range(num):
        frames[t, 3:11, 30:54] = score[t]
        for x, y, height in ((8, t % 60, 8), (75, (3 * t) % 60, 8), (10 + t, t % 66, 2)):
            frames[t, 14 + y : 14 + y + height, x : x + 2] = 200
    return frames


class AtariShaped(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`num_envs` of them; a step hands out arrays that are there already."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, stacked: bool = False) -> None:
        shape = (STACK, SIZE, SIZE) if stacked else (SIZE, SIZE)
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.single_action_space = spaces.Discrete(NUM_ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shown = _shown(num_envs, stacked)
        rng = np.random.default_rng(2)
        # As many steps as make a hundred episodes or so end per environment, then over again.
        length = MEAN_EPISODE // 8 * NUM_PICTURES
        self._ends = rng.random((length, num_envs)) < 1 / MEAN_EPISODE
        # The step after an end only starts the next episode; so does the first of all.
        self._ends[0] = False
        self._ends[1:] &= ~self._ends[:-1]
        self._rewards = (rng.random((length, num_envs)) < 0.02).astype(np.float32)
        self._never = np.zeros(num_envs, np.bool_)
        self._t = 0

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._t = 0
        return self._shown[0], {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self._t += 1
        row = self._t % len(self._ends)
        return self._shown[self._t % NUM_PICTURES], self._rewards[row], self._ends[row], self._never, {}


def _shown(num_envs: int, stacked: bool) -> np.ndarray:
    """[time, env, ...]: what each environment shows at each time."""
    frames = pictures()
    number = np.arange(NUM_PICTURES)[:, None] + 7 * np.arange(num_envs)
    if stacked:
        number = number[..., None] + np.arange(STACK)
    return frames[number % NUM_PICTURES]


gym.register(ENV_ID, entry_point=None, vector_entry_point=AtariShaped)
