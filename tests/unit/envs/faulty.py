"""Environments for tests that break when they are told to, and batches of all kinds of arrays.

`FaultyEnv` and `FaultyBatch` break by a `Plan`: which construction, reset or step does what. Plans are kept
by name, because environments are made from their import path and arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from tests.unit.envs.counting import CountingEnv, CountingVectorEnv

PLANS: dict[str, Plan] = {}


@dataclass
class Plan:
    """What goes wrong: (what, its number over all copies and lives, from 1) -> what to do instead."""

    faults: dict[tuple[str, int], Callable[[Any], Any]]
    counts: dict[str, int] = field(default_factory=dict)
    seeds: list[int | None] = field(default_factory=list)
    num_closed: int = 0

    def carry_out(self, what: str, result: Any = None) -> Any:
        self.counts[what] = self.counts.get(what, 0) + 1
        fault = self.faults.get((what, self.counts[what])) or self.faults.get((what, 0))
        return fault(result) if fault is not None else result


def raises(error: Exception) -> Callable[[Any], Any]:
    def do(_: Any) -> Any:
        raise error

    return do


def shows(position: int, value: Any) -> Callable[[Any], Any]:
    """Instead of observation (0), reward (1), terminated, truncated or info."""
    return lambda result: (*result[:position], value, *result[position + 1 :])


class FaultyEnv(CountingEnv):
    def __init__(self, plan: str) -> None:
        super().__init__()
        self._plan = PLANS[plan]
        self._plan.carry_out("make")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._plan.seeds.append(seed)
        return self._plan.carry_out("reset", super().reset(seed=seed))

    def step(self, action: int) -> Any:
        return self._plan.carry_out("step", super().step(action))

    def close(self) -> None:
        self._plan.num_closed += 1
        self._plan.carry_out("close")


class FaultyBatch(CountingVectorEnv):
    def __init__(self, num_envs: int, plan: str) -> None:
        super().__init__(num_envs)
        self._plan = PLANS[plan]
        self._plan.carry_out("make")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._plan.seeds.append(seed)
        return self._plan.carry_out("reset", super().reset(seed=seed))

    def step(self, actions: np.ndarray) -> Any:
        return self._plan.carry_out("step", super().step(actions))

    def close_extras(self, **kwargs: Any) -> None:
        self._plan.num_closed += 1
        self._plan.carry_out("close")


class SameStepBatch(CountingVectorEnv):
    """Begins the next episode on the step that ends one, and puts the final observation in its info."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, final: str = "final_obs", form: str = "objects") -> None:
        super().__init__(num_envs)
        self._final = final
        self._form = form

    def step(self, actions: np.ndarray) -> Any:
        final = np.full((self.num_envs, 3), np.nan, np.float32)
        done = np.zeros(self.num_envs, np.bool_)
        for i, env in enumerate(self._envs):
            row = env.step(int(actions[i]))
            self._observations[i], self._rewards[i], self._terminated[i], self._truncated[i] = row[:4]
            done[i] = row[2] or row[3]
            if done[i]:
                final[i] = row[0]
                self._observations[i], _ = env.reset()
        info: dict[str, Any] = {}
        if done.any() and self._form != "missing":
            info = {self._final: final, f"_{self._final}": done}
            if self._form == "objects":
                info[self._final] = np.full(self.num_envs, None, dtype=object)
                for i in np.flatnonzero(done):
                    info[self._final][i] = final[i]
            elif self._form == "no mask":
                del info[f"_{self._final}"]
            elif self._form == "half":
                info[f"_{self._final}"] = np.zeros(self.num_envs, np.bool_)
        return self._observations, self._rewards, self._terminated, self._truncated, info


class OtherModeBatch(CountingVectorEnv):
    def __init__(self, num_envs: int, mode: Any = None) -> None:
        super().__init__(num_envs)
        self.metadata = {} if mode is None else {"autoreset_mode": mode}


class DeviceArray:
    """An array of another library that converts itself."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values.copy()
        self._values.flags.writeable = False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._values


class DeviceBatch:
    """Not a subclass of anything: only what is used of a batch."""

    metadata = {"autoreset_mode": "NextStep"}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self._batch = CountingVectorEnv(num_envs)
        self.num_envs = num_envs
        self.single_observation_space = self._batch.single_observation_space
        self.single_action_space = self._batch.single_action_space

    def reset(self, *, seed: int) -> Any:
        observation, info = self._batch.reset(seed=seed)
        return DeviceArray(observation), info

    def step(self, actions: np.ndarray) -> Any:
        assert isinstance(actions, np.ndarray)
        *arrays, info = self._batch.step(actions)
        return *map(DeviceArray, arrays), info


class WrongSizeBatch(CountingVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs + 1)
