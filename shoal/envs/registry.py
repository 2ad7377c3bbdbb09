"""Looking up environments and making one, with errors that a user can act on.

Called by `shoal.envs.vector`, and by the worker processes of asynchronous vectorisation.
"""

from __future__ import annotations

import difflib
import importlib
import multiprocessing
import signal
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from shoal.errors import UserError

# Part of an entry point's module -> extra of this distribution that brings what it needs.
_EXTRAS = {"ale_py": "atari", "mujoco": "mujoco", "box2d": "box2d", "envpool": "envpool"}


def find_env(env_id: str) -> registration.EnvSpec:
    """The registered environment for `id`, `module:id` or an id without version (the newest is taken)."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    elif name.startswith("ALE/"):
        _import("ale_py", env_id)
    try:
        namespace, base, version = registration.parse_env_id(name)
    except gym.error.Error as e:
        raise UserError(f"env.id {env_id!r} is not a valid id: {_one_line(e)}") from e
    if version is None and name not in gym.registry:
        newest = registration.find_highest_version(namespace, base)
        name = registration.get_env_id(namespace, base, newest)
    if name not in gym.registry:
        raise UserError(f"unknown environment {env_id!r}; {_suggestion(name)}")
    return gym.registry[name]


def make_env(spec: registration.EnvSpec, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """One environment. Also runs inside the worker processes of asynchronous vectorisation."""
    if multiprocessing.current_process().name.startswith("Worker<"):
        # Ctrl-C reaches the whole process group; workers end when the actor closes them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return gym.make(spec, disable_env_checker=True, **kwargs)


def construction_error(spec: registration.EnvSpec, error: Exception) -> UserError:
    """What a failed constructor means for the user, in one line."""
    entry_point = f"{spec.entry_point} {spec.vector_entry_point}"
    extra = next((extra for part, extra in _EXTRAS.items() if part in entry_point), None)
    missing = isinstance(error, (ImportError, gym.error.DependencyNotInstalled))
    advice = f"; pip install 'shoal[{extra}]'" if missing and extra else ""
    reason = f"{type(error).__name__}: {_one_line(error)}"
    return UserError(f"cannot make environment {spec.id!r}: {reason}{advice}")


def _import(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as e:  # importing runs the user's own code
        extra = _EXTRAS.get(module)
        advice = f"pip install 'shoal[{extra}]'" if extra else "is it installed, and on PYTHONPATH?"
        message = f"cannot import {module!r} for environment {env_id!r}: {_one_line(e)}; {advice}"
        raise UserError(message) from e


def _suggestion(name: str) -> str:
    known = {key.lower(): key for key in gym.registry}
    nearest = difflib.get_close_matches(name.lower(), known, n=1)
    if nearest:
        return f"did you mean {known[nearest[0]]!r}?"
    return "environments of other packages are named `module:id`, the module being one that registers them"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
