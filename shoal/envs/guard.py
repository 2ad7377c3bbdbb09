"""One environment that knows where it is, and can be replaced by another copy when it breaks.

Used by `shoal.envs.sync` and `shoal.envs.parallel_copy`. The environment's own code runs only in here, in the
thread of the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class GuardedEnv:
    """An environment of Gymnasium or PettingZoo (parallel) with its seed, episode and step."""

    __slots__ = ("_make", "_title", "env", "episode", "has_begun", "seed", "step_of_episode")

    def __init__(self, env: Any, make: Callable[[], Any], title: str) -> None:
        """`env` was made by `make`, which makes another one if it breaks."""
        self.env = env
        self._make = make
        self._title = title
        self.has_begun = False
        self.seed = self.episode = self.step_of_episode = 0

    @property
    def name(self) -> str:
        """Which one it is and where it is: enough to get there again."""
        where = f"seed {self.seed}, episode {self.episode}, step {self.step_of_episode}"
        return f"{self._title} ({where})"

    def begin(self, seed: int) -> Any:
        """What the first `reset` with this seed returns."""
        self.seed, self.episode, self.step_of_episode = seed, 1, 0
        return self.env.reset(seed=seed)

    def begin_episode(self) -> Any:
        """What the `reset` to the next episode returns."""
        self.has_begun = True
        self.episode += 1
        self.step_of_episode = 0
        return self.env.reset()

    def begin_anew(self, seed: int) -> Any:
        """As `begin`, with another copy."""
        self.close()
        self.env = self._make()
        return self.begin(seed)

    def step(self, action: Any) -> Any:
        self.has_begun = True
        self.step_of_episode += 1
        return self.env.step(action)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it may be what broke
            self.env.close()
