"""Shows the previous action and reward beside what environments show: inputs of recurrent policies.

They are observations like others: sent, stored and trained on by the ways that there are, so that acting and
learning see the same numbers by construction. Put around a `BatchEnv` by actors and by `shoal eval`. NumPy
only; one caller at a time, as for what it is put around.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from shoal.envs.batch import BatchEnv, EnvStep, Slots
from shoal.records import PREVIOUS_ACTION, PREVIOUS_REWARD, ActionSpec, ArraySpec, BoxAction, EnvSpec

# Of elements of an action that have no bounds to scale them by.
_MAX_UNBOUNDED = 10.0


def show_previous(env: BatchEnv) -> BatchEnv:
    """The same environments, which also show the previous action and reward of each slot."""
    return _PreviousShown(env)


def with_previous(spec: EnvSpec) -> EnvSpec:
    """What an environment shows that also shows those."""
    shown = (_shown_as(spec.action).spec, ArraySpec(PREVIOUS_REWARD, "float32", ()))
    return replace(spec, observation=(*spec.observation, *shown))


class _PreviousShown:
    def __init__(self, env: BatchEnv) -> None:
        self._env = env
        self._actions = {policy: _shown_as(slots.spec.action) for policy, slots in env.slots.items()}
        self.slots: Mapping[str, Slots] = {
            policy: replace(slots, spec=with_previous(slots.spec)) for policy, slots in env.slots.items()
        }

    @property
    def waits(self) -> bool:
        return self._env.waits

    @property
    def num_restarts(self) -> int:
        return self._env.num_restarts

    def reset(self, seed: int) -> dict[str, EnvStep]:
        shown = self._env.reset(seed)
        return {
            policy: _shown(step, self._actions[policy].none(len(step.first)))
            for policy, step in shown.items()
        }

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        shown = self._env.step(actions)
        return {
            policy: _shown(step, self._actions[policy].of(actions[policy], step.first))
            for policy, step in shown.items()
        }

    def close(self) -> None:
        self._env.close()


def _shown(step: EnvStep, action: np.ndarray) -> EnvStep:
    reward = np.where(step.first, 0.0, symlog(step.reward)).astype(np.float32)
    return replace(step, observation={**step.observation, PREVIOUS_ACTION: action, PREVIOUS_REWARD: reward})


def symlog(reward: np.ndarray) -> np.ndarray:
    """sign(r) log(1 + |r|): nearly r itself where it is small, and never large."""
    shrunk: np.ndarray = np.sign(reward) * np.log1p(np.abs(reward))
    return shrunk


class _ShownAs(Protocol):
    """How actions of one kind are shown. At an episode's start there is none."""

    spec: ArraySpec

    def of(self, action: np.ndarray, first: np.ndarray) -> np.ndarray: ...

    def none(self, num: int) -> np.ndarray: ...


def _shown_as(action: ActionSpec) -> _ShownAs:
    return _ScaledAction(action) if isinstance(action, BoxAction) else _CategoricalAction(action)


class _CategoricalAction:
    """Counted from 1: category 0 is that there was none."""

    def __init__(self, action: ActionSpec) -> None:
        taken = action.array_spec()
        self.spec = replace(
            taken, name=PREVIOUS_ACTION, dtype="int32", num_categories=taken.num_categories + 1
        )

    def of(self, action: np.ndarray, first: np.ndarray) -> np.ndarray:
        starts = first.reshape(-1, *(1,) * (action.ndim - 1))
        return np.where(starts, 0, action + 1).astype(np.int32)

    def none(self, num: int) -> np.ndarray:
        return np.zeros((num, *self.spec.shape), np.int32)


class _ScaledAction:
    """Within [-1, 1] by the bounds of each element, clipped as the environment clips it."""

    def __init__(self, action: BoxAction) -> None:
        self.spec = replace(action.array_spec(), name=PREVIOUS_ACTION)
        low, high = (
            np.array(bounds, np.float64).reshape(action.shape) for bounds in (action.low, action.high)
        )
        bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
        # A half at a time: the difference of the largest bounds is no number.
        self._centre = np.where(bounded, low / 2 + high / 2, 0.0)
        self._half_width = np.where(bounded, high / 2 - low / 2, 1.0)
        self._limit = np.where(bounded, 1.0, _MAX_UNBOUNDED)

    def of(self, action: np.ndarray, first: np.ndarray) -> np.ndarray:
        scaled = np.clip((action - self._centre) / self._half_width, -self._limit, self._limit)
        starts = first.reshape(-1, *(1,) * (action.ndim - 1))
        return np.where(starts, 0.0, scaled).astype(np.float32)

    def none(self, num: int) -> np.ndarray:
        return np.zeros((num, *self.spec.shape), np.float32)
