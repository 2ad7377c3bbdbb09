"""EnvPool tasks by `envpool:Task-v1`: batches that are stepped by threads of C++.

`env.kwargs` takes EnvPool's own names. Atari shows one frame per observation, as everywhere in shoal. Used by
`shoal.envs.sources`.
"""

from __future__ import annotations

import difflib
import warnings
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.envs.atari import OneFrame, num_threads
from shoal.envs.registry import Source, import_module
from shoal.errors import UserError

# What EnvPool is given by shoal, so not by the user.
_TAKEN = ("batch_size", "seed", "env_seed")


def envpool_source(task: str, kwargs: dict[str, Any]) -> Source:
    """One of EnvPool's tasks, of its exact name."""
    env_id = f"envpool:{task}"
    envpool: Any = import_module("envpool", env_id)
    known = envpool.list_all_envs()
    if task not in known:
        nearest = difflib.get_close_matches(task, known, n=1)
        advice = (
            f"did you mean 'envpool:{nearest[0]}'?" if nearest else "envpool.list_all_envs() has the names"
        )
        raise UserError(f"EnvPool has no task {task!r}; {advice}")
    taken = [name for name in _TAKEN if name in kwargs]
    if taken:
        raise UserError(f"env.kwargs has {taken[0]!r}, which shoal gives to EnvPool by itself")
    return Source(env_id, "envpool", make_batch=partial(_make_batch, envpool, task, kwargs))


class SeededPool(VectorEnv[Any, Any, Any]):
    """A pool that takes its seed at the first reset. EnvPool's take theirs when they are made, so the pool is
    made at the reset; what it shows and takes is known before."""

    # What EnvPool does: the step after the end of an episode ignores the action and shows the first
    # observation, with reward 0. In this mode of use the rows are in the order of the environments.
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, envpool: Any, task: str, num_envs: int, kwargs: dict[str, Any]) -> None:
        self._make = partial(envpool.make_gymnasium, task, num_envs=num_envs, **kwargs)
        spec = _quietly(partial(envpool.make_spec, task, num_envs=num_envs, **kwargs))
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _quietly(
            lambda: (spec.gymnasium_observation_space, spec.gymnasium_action_space)
        )
        self.observation_space, self.action_space = _quietly(
            lambda: (
                batch_space(self.single_observation_space, num_envs),
                batch_space(self.single_action_space, num_envs),
            )
        )
        self._pool: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.close_extras()
        # It takes seeds of 31 bits.
        self._pool = _quietly(partial(self._make, seed=seed % (1 << 31)))
        return _quietly(self._pool.reset)  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._pool.step(actions)  # type: ignore[no-any-return]

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _make_batch(envpool: Any, task: str, kwargs: dict[str, Any], num_envs: int) -> Any:
    given = {"num_threads": num_threads(num_envs), **kwargs}
    config = _quietly(partial(envpool.make_spec, task)).config._asdict()
    is_atari = "repeat_action_probability" in config and "stack_num" in config
    if not is_atari:
        return SeededPool(envpool, task, num_envs, given)
    given = {"stack_num": 1, **given}
    pool = SeededPool(envpool, task, num_envs, given)
    is_one = given["stack_num"] == 1 and given.get("gray_scale", config.get("gray_scale", True))
    return OneFrame(pool) if is_one else pool


def _quietly(make: Any) -> Any:
    """Gymnasium warns of bounds that EnvPool gives in more digits than a space of float32 keeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make()
