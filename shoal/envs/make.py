"""The one way to environments: from the configuration to a `BatchEnv`.

`make_batch_env` finds what `env.id` names (`shoal.envs.sources`), chooses how it is vectorised and builds it:
`native` (`shoal.envs.native`), `sync` (`shoal.envs.sync`), `async` (`shoal.envs.workers`), or the agents of a
multi-agent environment (`shoal.envs.multi_agent`). Called by actors, evaluators and `shoal envs check`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv
from shoal.envs.native import NativeEnv
from shoal.envs.registry import Source, construction_error
from shoal.envs.restarts import Restarts
from shoal.envs.sources import find_source
from shoal.envs.sync import SyncEnv
from shoal.envs.wrappers import Wrapper, apply_wrappers, load_wrappers
from shoal.errors import UserError

Mode = Literal["native", "sync", "async"]

_SINGLE = ("observation_space", "action_space", "reset", "step")
_BATCH = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")


def make_batch_env(section: EnvSection, num_envs: int, restarts: Restarts | None = None) -> BatchEnv:
    """`num_envs` environments as the section asks. Raises UserError.

    `restarts`: the count that these environments share with others of the same actor.
    """
    source = find_source(section)
    wrappers = load_wrappers(section.wrappers)
    mode = choose_mode(section, source, wrappers)
    restarts = restarts or Restarts(section.max_restarts)
    if mode == "async":
        from shoal.envs.workers import make_worker_env

        return make_worker_env(section, num_envs, partial(make_part, section), restarts)
    try:
        if mode == "native":
            return _make_native(section, source, wrappers, num_envs, restarts)
        return _make_inline(section, source, wrappers, num_envs, restarts)
    except UserError:
        raise
    except Exception as e:  # whatever the environment's own constructor raises
        raise construction_error(source.env_id, source.origin, e) from e


def make_part(section: EnvSection, num_envs: int) -> BatchEnv:
    """The environments of one worker process: made in there, from what can be sent to it."""
    return make_batch_env(section.model_copy(update={"vectorization": "sync"}), num_envs)


def choose_mode(section: EnvSection, source: Source, wrappers: Sequence[Wrapper] = ()) -> Mode:
    """How the environments are vectorised. Raises UserError for what the environment cannot do."""
    asked = section.vectorization
    wraps_batch = next((wrapper.path for wrapper in wrappers if wrapper.wraps_batch), None)
    wraps_single = next((wrapper.path for wrapper in wrappers if not wrapper.wraps_batch), None)
    mode: Mode
    if asked == "auto":
        fits = source.make_batch is not None and wraps_single is None
        mode = "native" if fits or source.make_one is None else "sync"
    else:
        mode = asked
    if mode == "native":
        if source.make_batch is None:
            raise UserError(
                f"environment {source.env_id!r} makes single environments and has no batch of its own; "
                "set env.vectorization to auto, sync or async"
            )
        if wraps_single is not None:
            other = "; set env.vectorization to sync" if source.make_one is not None else ""
            raise UserError(
                f"env.wrappers: {wraps_single!r} wraps single environments, but {source.env_id!r} is made "
                f"as a batch, which takes subclasses of gymnasium.vector.VectorWrapper{other}"
            )
        return mode
    if source.make_one is None:
        raise UserError(
            f"environment {source.env_id!r} is only made as a batch; set env.vectorization to native"
        )
    if wraps_batch is not None:
        raise UserError(
            f"env.wrappers: {wraps_batch!r} wraps a batch of environments, but those of {source.env_id!r} "
            "are made one by one; set env.vectorization to native if it has a batch of its own"
        )
    return mode


def _make_native(
    section: EnvSection, source: Source, wrappers: Sequence[Wrapper], num_envs: int, restarts: Restarts
) -> BatchEnv:
    assert source.make_batch is not None
    make = partial(_make_wrapped, partial(source.make_batch, num_envs), wrappers)
    batch = make()
    _check_interface(batch, _BATCH, source, "no batch of environments")
    if batch.num_envs != num_envs:
        raise UserError(
            f"environment {source.env_id!r} made a batch of {batch.num_envs} instead of {num_envs}"
        )
    try:
        return NativeEnv(batch, make, source.env_id, section.action_mask, restarts)
    except UserError as e:
        _close([batch])
        raise UserError(f"environment {source.env_id!r}: {e}") from e


def _make_inline(
    section: EnvSection, source: Source, wrappers: Sequence[Wrapper], num_envs: int, restarts: Restarts
) -> BatchEnv:
    assert source.make_one is not None
    make = partial(_make_wrapped, source.make_one, wrappers)
    envs = [make()]
    if hasattr(envs[0], "possible_agents"):
        from shoal.envs.multi_agent import make_multi_agent_env

        _close(envs)
        return make_multi_agent_env(section, num_envs, make, source.env_id, restarts)
    try:
        _check_interface(envs[0], _SINGLE, source, "no environment of Gymnasium or PettingZoo (parallel)")
        if hasattr(envs[0], "single_observation_space"):
            raise UserError("it makes a batch; let it take the size as a parameter `num_envs`")
        envs += [make() for _ in range(num_envs - 1)]
        return SyncEnv(envs, make, source.env_id, section.action_mask, restarts)
    except UserError as e:
        _close(envs)
        raise UserError(f"environment {source.env_id!r}: {e}") from e
    except Exception:
        _close(envs)
        raise


def _make_wrapped(make: Callable[[], Any], wrappers: Sequence[Wrapper]) -> Any:
    return apply_wrappers(make(), wrappers)


def _check_interface(made: object, expected: Sequence[str], source: Source, otherwise: str) -> None:
    missing = [name for name in expected if not hasattr(made, name)]
    if missing:
        raise UserError(
            f"env.id {source.env_id!r} makes a {type(made).__name__}, which is {otherwise}: "
            f"it has no {', '.join(missing)}"
        )


def _close(envs: Sequence[Any]) -> None:
    for env in envs:
        with suppress(Exception):  # it is not wanted any more, whatever it says
            env.close()
