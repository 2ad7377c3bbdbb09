"""One environment that is started again when it breaks, and knows where it is when it does.

Used by `shoal.envs.sync`. The environment's own code runs only in here, in the thread of the caller.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from shoal.envs.faults import in_words, traceback_once
from shoal.envs.restarts import Restarts, seed_after
from shoal.errors import UserError

log = logging.getLogger(__name__)


class GuardedEnv:
    """An environment with its seed, episode and step; the caller tells it when it broke."""

    __slots__ = ("_env", "_env_id", "_has_begun", "_make", "_restarts", "episode", "seed", "step_of_episode")

    def __init__(
        self,
        env: gym.Env[Any, Any],
        make: Callable[[], gym.Env[Any, Any]],
        env_id: str,
        restarts: Restarts,
    ) -> None:
        self._env = env
        self._make = make
        self._env_id = env_id
        self._restarts = restarts
        self._has_begun = False
        self.seed = self.episode = self.step_of_episode = 0

    @property
    def name(self) -> str:
        """Which one it is and where it is: enough to get there again."""
        where = f"seed {self.seed}, episode {self.episode}, step {self.step_of_episode}"
        return f"environment {self._env_id!r} ({where})"

    def begin(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """The first observation of the first episode with this seed."""
        self.seed, self.episode, self.step_of_episode = seed, 1, 0
        return self._env.reset(seed=seed)

    def begin_episode(self) -> tuple[Any, dict[str, Any]]:
        """The first observation of the next episode."""
        self._has_begun = True
        self.episode += 1
        self.step_of_episode = 0
        return self._env.reset()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._has_begun = True
        self.step_of_episode += 1
        return self._env.step(action)

    def begin_anew(self, fault: BaseException) -> tuple[Any, dict[str, Any]]:
        """The first observation of another copy of the environment, after this one broke by `fault`.

        Raises UserError if the very first observation was already faulty, or when faults are too many.
        """
        told = f"{self.name} {in_words(fault)}"
        if not self._has_begun:
            raise UserError(told) from fault
        self._restarts.count(told)
        seed = seed_after(self.seed, 0, self._restarts.num_restarts)
        log.warning(
            "%s; starting it again with seed %d",
            told,
            seed,
            exc_info=traceback_once(fault, self._restarts),
        )
        self.close()
        self._env = self._make()
        return self.begin(seed)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it may be what broke
            self._env.close()
