"""Environments that are a batch by themselves, as a `BatchEnv`: one object that steps all copies at once.

Anything with the interface of Gymnasium's `VectorEnv` will do: `num_envs`, `single_observation_space`,
`single_action_space`, `reset`, `step`, and `metadata["autoreset_mode"]`. Its arrays may be NumPy's, JAX's or
torch's, on any device; actions are given as NumPy arrays. Built by `shoal.envs.make`. One caller at a
time, from any thread.

A batch that is NEXT_STEP means by a step what shoal means. One that is SAME_STEP shows the first observation
of the next episode on the step that ends one, with the final observation in its info. That is put back in its
place; on the next step the batch has already taken an action from the first observation, so what it shows
then stands in for the first observation and that step's reward is dropped: each episode loses its first step,
and nothing is trained on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.envs.anew import begin_anew
from shoal.envs.arrays import to_numpy
from shoal.envs.batch import EnvStep, Slots
from shoal.envs.faults import BadValueError, is_finite, non_finite
from shoal.envs.restarts import Restarts
from shoal.envs.slot_log import SlotLog
from shoal.envs.spaces import MaskSource, SpaceAdapter
from shoal.errors import UserError
from shoal.records import DEFAULT_POLICY, Columns

# Info entries with the final observations of a SAME_STEP batch: Gymnasium's name and its former one.
_FINAL = ("final_obs", "final_observation")
_FLOAT, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)


class Batch(Protocol):
    """What of Gymnasium's `VectorEnv` is used."""

    metadata: dict[str, Any]

    @property
    def num_envs(self) -> int: ...

    @property
    def single_observation_space(self) -> gym.Space[Any]: ...

    @property
    def single_action_space(self) -> gym.Space[Any]: ...

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]: ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...


class NativeEnv:
    """A batch as a `BatchEnv` of one policy."""

    waits = False

    def __init__(
        self,
        batch: Batch,
        make: Callable[[], Batch],
        env_id: str,
        masks: MaskSource,
        restarts: Restarts,
    ) -> None:
        """`batch` was made by `make`, which makes another one when it broke."""
        self._batch = batch
        self._make = make
        self._env_id = env_id
        self._restarts = restarts
        self._same_step = _is_same_step(batch)
        self._num = num = batch.num_envs
        self._spaces = SpaceAdapter(batch.single_observation_space, batch.single_action_space, masks, num)
        self._done = np.zeros(num, np.bool_)
        self.seed = 0
        self.has_begun = False
        self._steps = 0
        self._slot_log = SlotLog(num)
        self.slots = {DEFAULT_POLICY: Slots(self._spaces.spec(env_id), num)}
        self.num_restarts = 0

    @property
    def name(self) -> str:
        """Which batch it is and where it is."""
        return f"environment {self._env_id!r} (seed {self.seed}, step {self._steps} of the batch)"

    def doing(self) -> str:
        """For any thread."""
        return self.name

    def reset(self, seed: int) -> dict[str, EnvStep]:
        try:
            begun = self._begin(seed)
        except Exception as e:  # whatever the environment's own code raises
            begun = self._begin_anew(e)
        self.has_begun = True
        return begun

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        taken = self._spaces.action.to_env(actions[DEFAULT_POLICY])
        self._steps += 1
        try:
            observation, reward, terminated, truncated, info = self._batch.step(taken)
            step = self._converted(observation, reward, terminated, truncated, info)
        except UserError:
            raise
        except Exception as e:  # whatever the environment's own code raises or returns
            return self._begin_anew(e)
        self._slot_log.add(step.first)
        if not is_finite(step.observation, step.reward):
            return self._begin_anew(self._non_finite(step))
        self._done = step.done
        return {DEFAULT_POLICY: step}

    def close(self) -> None:
        close = getattr(self._batch, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # it may be what broke
                close()

    def _begin(self, seed: int) -> dict[str, EnvStep]:
        self.seed, self._steps = seed, 0
        self._slot_log = SlotLog(self._num)
        observation, info = self._batch.reset(seed=seed)
        nothing = self._done = np.zeros(self._num, np.bool_)
        step = EnvStep(
            observation=self._spaces.to_columns(observation, info),
            reward=np.zeros(self._num, np.float32),
            terminated=nothing,
            truncated=nothing,
            first=np.ones(self._num, np.bool_),
            done=nothing,
        )
        if not is_finite(step.observation, step.reward):
            raise self._non_finite(step)
        return {DEFAULT_POLICY: step}

    def _converted(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> EnvStep:
        columns = self._spaces.to_columns(observation, info)
        rewards = self._of_slots(reward, _FLOAT, "a reward")
        ended = self._of_slots(terminated, _BOOL, "terminated")
        cut = self._of_slots(truncated, _BOOL, "truncated")
        first = self._done
        if not self._same_step:
            return EnvStep(columns, rewards, ended, cut, first, ended | cut)
        # A new episode that ends with its hidden step is gone: another first observation is shown already.
        ended, cut = ended & ~first, cut & ~first
        done = ended | cut
        if done.any():
            columns = self._with_final(columns, info, done)
        return EnvStep(columns, np.where(first, np.float32(0), rewards), ended, cut, first, done)

    def _of_slots(self, value: Any, dtype: np.dtype, what: str) -> np.ndarray:
        array = to_numpy(value)
        if array.shape != (self._num,):
            raise BadValueError(f"gave {what} of shape {list(array.shape)} instead of [{self._num}]")
        return array if array.dtype is dtype else array.astype(dtype)

    def _with_final(self, columns: Columns, info: Mapping[str, Any], done: np.ndarray) -> Columns:
        """The observations with the final ones where an episode ended."""
        name = next((name for name in _FINAL if name in info), None)
        given = to_numpy(info.get(f"_{name}", done)).astype(np.bool_)
        if name is None or not given[done].all():
            raise UserError(
                f"environment {self._env_id!r} is a batch with autoreset_mode SameStep, but its info has no "
                f"{_FINAL[0]!r} for an episode that ended; shoal needs it, or autoreset_mode NextStep"
            )
        rows = np.flatnonzero(done)
        merged = {name: column.copy() for name, column in columns.items()}
        final = info[name]
        if isinstance(final, np.ndarray) and final.dtype == object:
            for row in rows:
                self._spaces.write(merged, int(row), final[row], {})
            return merged
        for column_name, column in self._spaces.to_columns(final, {}).items():
            merged[column_name][rows] = column[rows]
        return merged

    def _non_finite(self, step: EnvStep) -> BadValueError:
        slot, fault = next(iter(non_finite(step.observation, step.reward).items()))
        episode, number = self._slot_log.where(slot)
        return BadValueError(f"{fault} (slot {slot}, its episode {episode}, step {number})")

    def _begin_anew(self, fault: Exception) -> dict[str, EnvStep]:
        """Another batch instead of the broken one; all slots begin an episode."""

        def begin(seed: int) -> dict[str, EnvStep]:
            self.num_restarts += 1
            self.close()
            self._batch = self._make()
            return self._begin(seed)

        return begin_anew(self, 0, fault, self._restarts, begin, "the batch")


def _is_same_step(batch: Batch) -> bool:
    """Raises UserError for a batch that does not start its episodes by itself, or does not say how."""
    said = getattr(batch, "metadata", {}).get("autoreset_mode")
    try:
        mode = AutoresetMode(said)
    except ValueError:
        mode = None
    if mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        return mode is AutoresetMode.SAME_STEP
    shown = said.value if isinstance(said, AutoresetMode) else said
    raise UserError(
        f"it is a batch whose metadata has autoreset_mode {shown}; shoal needs NextStep, or SameStep with "
        "the final observations in info['final_obs']: a batch must start its episodes by itself and say when"
    )
