"""Vectorised environments with one fixed meaning of a step.

`make_vector_env` builds a Gymnasium `VectorEnv`; `ShoalVectorEnv` gives it the run's spec, columns and
`first`. Called by actors. One caller at a time, from any thread.

Every environment restarts by itself on the step after its episode ended (Gymnasium's NEXT_STEP): the step
that ends an episode still shows its final observation, the next one ignores the action, earns nothing
and shows the first observation of the new episode.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from shoal.config.tree import EnvSection
from shoal.envs.batch import EnvStep, Slots
from shoal.envs.registry import construction_error, find_env, make_env
from shoal.envs.spaces import ActionAdapter, ObservationAdapter
from shoal.errors import UserError
from shoal.records import DEFAULT_POLICY, EnvSpec

_CLOSE_TIMEOUT_S = 2.0


class ShoalVectorEnv:
    """A Gymnasium `VectorEnv` as a `BatchEnv` of one policy."""

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str) -> None:
        self._env = env
        self._observation = ObservationAdapter(env.single_observation_space)
        self._action = ActionAdapter(env.single_action_space)
        self._done = np.zeros(env.num_envs, np.bool_)
        spec = EnvSpec(env_id, self._observation.specs, self._action.spec)
        self.slots = {DEFAULT_POLICY: Slots(spec, env.num_envs)}
        self.num_restarts = 0
        self.waits = isinstance(env, AsyncVectorEnv)

    def reset(self, seed: int) -> dict[str, EnvStep]:
        observation, _ = self._env.reset(seed=seed)
        num_envs = self._env.num_envs
        nothing = np.zeros(num_envs, np.bool_)
        self._done = nothing
        step = EnvStep(
            observation=self._observation.to_columns(observation),
            reward=np.zeros(num_envs, np.float32),
            terminated=nothing,
            truncated=nothing,
            first=np.ones(num_envs, np.bool_),
            done=nothing,
        )
        return {DEFAULT_POLICY: step}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        action = self._action.to_env(actions[DEFAULT_POLICY])
        observation, reward, terminated, truncated, _ = self._env.step(action)
        first = self._done
        terminated = np.asarray(terminated, np.bool_)
        truncated = np.asarray(truncated, np.bool_)
        self._done = terminated | truncated
        step = EnvStep(
            observation=self._observation.to_columns(observation),
            reward=np.asarray(reward, np.float32),
            terminated=terminated,
            truncated=truncated,
            first=first,
            done=self._done,
        )
        return {DEFAULT_POLICY: step}

    def close(self) -> None:
        """Ends the environments and their processes; a process that does not end in time is killed."""
        processes = getattr(self._env, "processes", ())
        if not processes:
            self._env.close()
            return
        # AsyncVectorEnv waits without a time limit for workers to answer.
        closer = threading.Thread(target=_close_quietly, args=(self._env,), daemon=True)
        closer.start()
        closer.join(_CLOSE_TIMEOUT_S)
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(_CLOSE_TIMEOUT_S)


def make_vector_env(section: EnvSection, num_envs: int) -> ShoalVectorEnv:
    """`num_envs` environments as the section asks. Raises UserError."""
    gym_spec = find_env(section.id)
    try:
        env = _vectorise(gym_spec, section, num_envs)
    except UserError:
        raise
    except Exception as e:  # whatever the environment's own constructor raises
        raise construction_error(gym_spec, e) from e
    try:
        return ShoalVectorEnv(env, gym_spec.id)
    except UserError as e:
        env.close()
        raise UserError(f"environment {gym_spec.id!r}: {e}") from e


def _vectorise(gym_spec: GymSpec, section: EnvSection, num_envs: int) -> VectorEnv[Any, Any, Any]:
    native = gym_spec.vector_entry_point is not None
    if section.vectorization == "native" and not native:
        raise UserError(
            f"environment {gym_spec.id!r} has no vector entry point; "
            "set env.vectorization to auto, sync or async"
        )
    if section.vectorization in ("auto", "native") and native:
        env = gym.make_vec(
            gym_spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **section.kwargs
        )
        _check_autoreset(env, gym_spec)
        return env
    if gym_spec.entry_point is None:
        raise UserError(
            f"environment {gym_spec.id!r} only has a vector entry point; set env.vectorization to native"
        )
    make = partial(make_env, gym_spec, section.kwargs)
    # copy=False: the unroll copies observations anyway.
    if section.vectorization == "async":
        # Workers are forked by a server process that has none of our event loop, threads and signal
        # handlers; what it imports once they need not import each.
        multiprocessing.set_forkserver_preload([make_env.__module__])
        return AsyncVectorEnv([make] * num_envs, copy=False, context="forkserver")
    return SyncVectorEnv([make] * num_envs, copy=False)


def _check_autoreset(env: VectorEnv[Any, Any, Any], gym_spec: GymSpec) -> None:
    mode = env.metadata.get("autoreset_mode")
    if mode in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        return
    env.close()
    said = f"autoreset_mode {mode.value if isinstance(mode, AutoresetMode) else mode}"
    other = " or set env.vectorization to sync" if gym_spec.entry_point is not None else ""
    raise UserError(
        f"the vector entry point of {gym_spec.id!r} has {said}; shoal needs NextStep, which keeps an "
        f"episode's final observation: switch it by env.kwargs if the environment can{other}"
    )


def _close_quietly(env: VectorEnv[Any, Any, Any]) -> None:
    try:
        env.close()
    except Exception:  # workers may be gone already, which is all that was wanted
        return
