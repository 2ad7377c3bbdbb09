"""What `env.id` names: a registered environment, a function or class of the user's own, an EnvPool task.

`find_source` tells how to make one environment, a batch of them, or both; `shoal.envs.make` chooses. Nothing
is made here, but modules are imported, which runs the user's code. Also used inside worker processes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from shoal.config.tree import EnvSection
from shoal.envs.atari import atari_source
from shoal.envs.envpool import envpool_source
from shoal.envs.registry import Source, find_env, import_module
from shoal.errors import UserError
from shoal.imports import load_attribute

NUM_ENVS = "num_envs"


def find_source(section: EnvSection) -> Source:
    """Raises UserError if there is no such environment."""
    where, _, name = section.id.rpartition(":")
    if NUM_ENVS in section.kwargs:
        raise UserError(
            f"env.kwargs has {NUM_ENVS!r}, which shoal gives by itself: the number is set by actor.envs"
        )
    if where == "envpool":
        return envpool_source(name, section.kwargs)
    if where.endswith(".py"):
        return _factory_source(f"{Path(where).name}:{name}", section)
    if where and not _is_registered(where, name, section.id):
        return _factory_source(section.id, section)
    gym_spec = find_env(section.id)
    if gym_spec.namespace == "ALE":
        return atari_source(gym_spec, section.kwargs)
    return _gym_source(gym_spec, section.kwargs)


def _is_registered(module: str, name: str, env_id: str) -> bool:
    """Whether `module:name` is a registered id. An attribute of the module goes before an id that lacks
    its version: `my_envs:CartPole` is not Gymnasium's."""
    import_module(module, env_id)
    if name in gym.registry or not name.isidentifier():
        return True
    if hasattr(sys.modules[module], name):
        return False
    return registration.find_highest_version(None, name) is not None


def _gym_source(gym_spec: registration.EnvSpec, kwargs: dict[str, Any]) -> Source:
    make_one = partial(gym.make, gym_spec, disable_env_checker=True, **kwargs)
    make_batch = partial(
        gym.make_vec, gym_spec, vectorization_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT, **kwargs
    )
    return Source(
        gym_spec.id,
        f"{gym_spec.entry_point} {gym_spec.vector_entry_point}",
        make_one=make_one if gym_spec.entry_point is not None else None,
        make_batch=make_batch if gym_spec.vector_entry_point is not None else None,
    )


def _factory_source(env_id: str, section: EnvSection) -> Source:
    factory = load_attribute(section.id, "env.id")
    if not callable(factory):
        raise UserError(
            f"env.id is {section.id!r}, which is a {type(factory).__name__}: name a function or a class that "
            "makes an environment"
        )
    make = partial(factory, **section.kwargs)
    if _takes_num_envs(factory):
        return Source(env_id, section.id, make_batch=lambda num_envs: make(num_envs=num_envs))
    return Source(env_id, section.id, make_one=make)


def _takes_num_envs(factory: Callable[..., Any]) -> bool:
    try:
        return NUM_ENVS in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtins and extension types have none to show
        return False
