"""How environments are made, those that are registered with Gymnasium, and errors that a user can act on.

Called by `shoal.envs.sources` and `shoal.envs.make`, also inside worker processes.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from shoal.envs.faults import one_line
from shoal.errors import UserError

# Part of the name of a module -> extra of this distribution that brings what it needs.
_EXTRAS = {
    "ale_py": "atari",
    "mujoco": "mujoco",
    "box2d": "box2d",
    "envpool": "envpool",
    "pettingzoo": "pettingzoo",
}


@dataclass(frozen=True)
class Source:
    """How environments are made. What `make_one` and `make_batch` return is not checked yet."""

    # The name in specs and messages; the same wherever the user's file lies.
    env_id: str
    # The modules that it comes from, for advice when something is not installed.
    origin: str
    # One environment: Gymnasium's, or a parallel one of PettingZoo's.
    make_one: Callable[[], Any] | None = None
    # So many environments in one object.
    make_batch: Callable[[int], Any] | None = None


def find_env(env_id: str) -> registration.EnvSpec:
    """The registered environment for `id`, `module:id` or an id without version (the newest is taken)."""
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module, env_id)
    elif name.startswith("ALE/"):
        import_module("ale_py", env_id)
    try:
        namespace, base, version = registration.parse_env_id(name)
    except gym.error.Error as e:
        raise UserError(f"env.id {env_id!r} is not a valid id: {' '.join(str(e).split())}") from e
    if version is None and name not in gym.registry:
        newest = registration.find_highest_version(namespace, base)
        name = registration.get_env_id(namespace, base, newest)
    if name not in gym.registry:
        raise UserError(f"unknown environment {env_id!r}; {_suggestion(name)}")
    return gym.registry[name]


def import_module(module: str, env_id: str) -> object:
    """The module that `env_id` names or needs. Raises UserError, with the extra that would bring it."""
    try:
        return importlib.import_module(module)
    except Exception as e:  # importing runs the user's own code
        advice = _near(module, e) or _install(module) or "is it installed, and on PYTHONPATH?"
        reason = " ".join(str(e).split())
        message = f"cannot import {module!r} for environment {env_id!r}: {reason}; {advice}"
        raise UserError(message) from e


def construction_error(env_id: str, origin: str, error: Exception) -> UserError:
    """What a failed constructor means for the user, in one line; `origin` names the modules it is in."""
    missing = isinstance(error, (ImportError, gym.error.DependencyNotInstalled))
    advice = _install(origin) if missing else ""
    return UserError(
        f"cannot make environment {env_id!r}: {one_line(error)}{f'; {advice}' if advice else ''}"
    )


def _near(module: str, error: Exception) -> str:
    """Of a package that is there but has no such module: the nearest that it has."""
    package, _, name = module.rpartition(".")
    if not isinstance(error, ModuleNotFoundError) or error.name != module or package not in sys.modules:
        return ""
    known = [found.name for found in pkgutil.iter_modules(sys.modules[package].__path__)]
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{package}.{nearest[0]}'?" if nearest else f"{package} has no {name}"


def _install(origin: str) -> str:
    extra = next((extra for part, extra in _EXTRAS.items() if part in origin), None)
    return f"pip install 'shoal[{extra}]'" if extra else ""


def _suggestion(name: str) -> str:
    known = {key.lower(): key for key in gym.registry}
    nearest = difflib.get_close_matches(name.lower(), known, n=1)
    if nearest:
        return f"did you mean {known[nearest[0]]!r}?"
    return "environments of other packages are named `module:id`, the module being one that registers them"
