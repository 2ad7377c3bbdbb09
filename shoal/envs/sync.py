"""Single environments one after another, as one `BatchEnv`.

Built by `shoal.envs.make`, also inside worker processes. An environment that raises, or shows what it must
not, is started again while the others go on. One caller at a time, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.envs.anew import begin_anew
from shoal.envs.batch import EnvStep, Slots
from shoal.envs.faults import BadValueError, is_finite, non_finite
from shoal.envs.guard import GuardedEnv
from shoal.envs.restarts import Restarts
from shoal.envs.spaces import MaskSource, SpaceAdapter
from shoal.errors import UserError
from shoal.records import DEFAULT_POLICY


class SyncEnv:
    """Environments of one policy. All show their observations in the same arrays, again and again."""

    waits = False

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        make: Callable[[], gym.Env[Any, Any]],
        env_id: str,
        masks: MaskSource,
        restarts: Restarts,
    ) -> None:
        """`envs` were made by `make`, which makes another one where one broke."""
        num = len(envs)
        observation_space, action_space = envs[0].observation_space, envs[0].action_space
        for env in envs[1:]:
            if env.observation_space != observation_space or env.action_space != action_space:
                raise UserError(
                    f"copies differ: one has the spaces {observation_space} and {action_space}, another "
                    f"{env.observation_space} and {env.action_space}"
                )
        self._spaces = SpaceAdapter(observation_space, action_space, masks, num)
        self._envs = [GuardedEnv(env, make, f"environment {env_id!r}") for env in envs]
        self._restarts = restarts
        self._columns = self._spaces.empty()
        self._reward = np.zeros(num, np.float32)
        self._done = np.zeros(num, np.bool_)
        # The one that is being stepped: the watch reads it from another thread.
        self._at = 0
        self.slots = {DEFAULT_POLICY: Slots(self._spaces.spec(env_id), num)}
        self.num_restarts = 0

    def doing(self) -> str:
        """Which environment is being stepped, and where it is. For any thread."""
        return self._envs[self._at].name

    def reset(self, seed: int) -> dict[str, EnvStep]:
        num = len(self._envs)
        self._reward.fill(0)
        for i, env in enumerate(self._envs):
            self._at = i
            try:
                observation, info = env.begin(seed + i)
                self._spaces.write(self._columns, i, observation, info)
            except Exception as e:  # whatever the environment's own code raises
                self._begin_anew(i, e)
        self._mend_non_finite()
        nothing = np.zeros(num, np.bool_)
        self._done = nothing
        return self._shown(nothing, nothing, np.ones(num, np.bool_))

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        taken = self._spaces.action.to_env(actions[DEFAULT_POLICY])
        first = self._done
        terminated = np.zeros(len(first), np.bool_)
        truncated = np.zeros(len(first), np.bool_)
        anew: list[int] = []
        starts = first.tolist()
        write, columns, rewards = self._spaces.write, self._columns, self._reward
        for i, env in enumerate(self._envs):
            self._at = i
            try:
                if starts[i]:
                    observation, info = env.begin_episode()
                    reward = 0.0
                else:
                    observation, reward, terminated[i], truncated[i], info = env.step(taken[i])
                write(columns, i, observation, info)
                rewards[i] = reward
            except Exception as e:  # whatever the environment's own code raises or returns
                self._begin_anew(i, e)
                anew.append(i)
        anew += self._mend_non_finite()
        if anew:
            first = first.copy()
            first[anew] = True
            terminated[anew] = truncated[anew] = False
        self._done = terminated | truncated
        return self._shown(terminated, truncated, first)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _shown(self, terminated: np.ndarray, truncated: np.ndarray, first: np.ndarray) -> dict[str, EnvStep]:
        return {
            DEFAULT_POLICY: EnvStep(self._columns, self._reward, terminated, truncated, first, self._done)
        }

    def _mend_non_finite(self) -> list[int]:
        """Starts environments again that show NaN or infinity; asked of all at once, which is cheap."""
        if is_finite(self._columns, self._reward):
            return []
        rows = non_finite(self._columns, self._reward)
        for row, fault in rows.items():
            self._begin_anew(row, BadValueError(fault))
        return list(rows)

    def _begin_anew(self, row: int, fault: Exception) -> None:
        """Puts the first observation of another environment in the row, one without fault."""
        self._at = row
        env = self._envs[row]

        def begin(seed: int) -> None:
            self.num_restarts += 1
            observation, info = env.begin_anew(seed)
            self._spaces.write(self._columns, row, observation, info)
            self._check_row(row)

        begin_anew(env, 0, fault, self._restarts, begin)
        self._reward[row] = 0

    def _check_row(self, row: int) -> None:
        columns = {name: column[row : row + 1] for name, column in self._columns.items()}
        for fault in non_finite(columns, np.zeros(1)).values():
            raise BadValueError(fault)
