"""CartPole whose observations also say which life of the actor process they come from.

Importing this module registers it; the id `tests.e2e.life_env:LifeCartPole-v0` makes actors do that.
"""

from __future__ import annotations

import secrets
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

# Exact as float32 and too small to matter to the policy.
LIFE = np.float32(secrets.randbelow(1 << 20) * 2.0**-30)


class LifeCartPoleVectorEnv(CartPoleVectorEnv):
    """The native vector CartPole with one constant more."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        return _with_life(observation), info

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        observation, *rest = super().step(action)
        return _with_life(observation), *rest


def _with_life(observation: np.ndarray) -> np.ndarray:
    return np.concatenate([observation, np.full((len(observation), 1), LIFE)], axis=1)


gym.register("LifeCartPole-v0", vector_entry_point=LifeCartPoleVectorEnv)
