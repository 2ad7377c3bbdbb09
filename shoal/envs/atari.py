"""Atari by `ALE/Game-v5`: the standard preprocessing, the same in every vectorisation.

Frameskip 4 with the maximum of the last two frames, grey 84x84, one frame per observation (stacking is
the policy's), up to 30 no-ops at the start, FIRE where a game waits for it, true rewards. `env.kwargs` takes
the names of ale_py's `AtariVectorEnv`. `native` is that class, in threads of C++; for `sync` and `async` the
same is put together from Gymnasium's wrapper and those of this file. Used by `shoal.envs.sources`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from shoal.cpus import num_cpus
from shoal.envs.registry import Source
from shoal.errors import UserError

_FIRE = 1
# What shoal gives where ale_py has other defaults.
_DEFAULTS = {"stack_num": 1, "reward_clipping": False}
# Have no meaning without the threads of the native environments.
_ONLY_NATIVE = ("num_threads", "thread_affinity_offset")
# Arguments of the preprocessing, with the defaults of ale_py.
_PREPROCESSING = {
    "frameskip": 4,
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "noop_max": 30,
    "stack_num": 1,
    "maxpool": True,
    "episodic_life": False,
    "use_fire_reset": True,
    "reward_clipping": False,
}


def atari_source(gym_spec: GymSpec, kwargs: dict[str, Any]) -> Source:
    """One game. An `obs_type` in `kwargs` asks for the game as it is, without preprocessing."""
    # Not everybody has it; whoever names a game of its does.
    import ale_py

    # Else every environment prints a banner.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if "batch_size" in kwargs:
        raise UserError("env.kwargs has 'batch_size': shoal steps all environments of a batch at once")
    if "obs_type" in kwargs:
        make_one = partial(gym.make, gym_spec, disable_env_checker=True, **kwargs)
        return Source(gym_spec.id, "ale_py", make_one=make_one)
    return Source(
        gym_spec.id,
        "ale_py",
        make_one=partial(_make_one, gym_spec, kwargs),
        make_batch=partial(_make_batch, gym_spec, kwargs),
    )


def num_threads(num_envs: int) -> int:
    """As many as this process may use CPUs; more threads than environments would idle."""
    return min(num_cpus(), num_envs)


class OneFrame(VectorWrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Stacks of one frame as that frame: [E, 1, ...] as [E, ...]."""

    def __init__(self, env: VectorEnv[np.ndarray, np.ndarray, np.ndarray]) -> None:
        super().__init__(env)
        stacked = env.single_observation_space
        assert isinstance(stacked, gym.spaces.Box)
        self.single_observation_space = gym.spaces.Box(stacked.low[0], stacked.high[0], dtype=np.uint8)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation[:, 0], info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, *others, info = self.env.step(actions)
        if "final_obs" in info:
            info = {**info, "final_obs": info["final_obs"][:, 0]}
        return observation[:, 0], *others, info  # type: ignore[return-value]


class FireReset(gym.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Presses FIRE at the start of an episode, which some games wait for."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(_FIRE)
        if terminated or truncated:
            return self.env.reset(options=options)
        return observation, info


def _make_batch(gym_spec: GymSpec, kwargs: dict[str, Any], num_envs: int) -> Any:
    given = {**_DEFAULTS, "num_threads": num_threads(num_envs), **kwargs}
    env = gym.make_vec(
        gym_spec,
        num_envs=num_envs,
        vectorization_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT,
        **given,
    )
    return OneFrame(env) if given["stack_num"] == 1 else env


def _make_one(gym_spec: GymSpec, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    asked = {name: kwargs.get(name, default) for name, default in _PREPROCESSING.items()}
    if asked["stack_num"] != 1 or not asked["maxpool"]:
        raise UserError(
            f"env.kwargs: stack_num {asked['stack_num']} and maxpool {asked['maxpool']} are only for "
            "env.vectorization native; frames are stacked by policy.frame_stack"
        )
    of_game = {
        name: value
        for name, value in kwargs.items()
        if name not in _PREPROCESSING and name not in _ONLY_NATIVE
    }
    env = gym.make(gym_spec, frameskip=1, disable_env_checker=True, **of_game)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    env = gym.wrappers.AtariPreprocessing(
        env,
        noop_max=asked["noop_max"],
        frame_skip=asked["frameskip"],
        screen_size=(asked["img_width"], asked["img_height"]),
        grayscale_obs=asked["grayscale"],
        # As in ale_py: the life ends, and the game with it.
        terminal_on_life_loss=asked["episodic_life"],
    )
    if asked["use_fire_reset"] and "FIRE" in meanings:
        env = FireReset(env)
    if asked["reward_clipping"]:
        env = gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))
    return env
