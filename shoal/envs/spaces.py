"""Gymnasium spaces as the run's spec, and values across that border.

Owns which spaces are supported. `ObservationAdapter` flattens what an environment shows into named arrays,
`ActionAdapter` turns the policy's actions into what the environment takes. Used by `shoal.envs.vector`
only; plain NumPy, no state, usable from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from shoal.codec import DTYPES
from shoal.errors import UserError
from shoal.records import OBSERVATION, ActionSpec, ArraySpec, BoxAction, Columns, DiscreteAction

_OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these"
_ACTIONS = "Discrete, and Box of floats"


@dataclass(frozen=True)
class _Leaf:
    """One array of the observation: where it is in the environment's structure, and its spec."""

    spec: ArraySpec
    path: tuple[str | int, ...]
    # What the environment counts categories from; they are sent counted from 0.
    start: np.ndarray | None = None


class ObservationAdapter:
    """Flattens batched observations of one space into columns, in the order of the space."""

    def __init__(self, space: Space[Any]) -> None:
        self._leaves = tuple(_leaves(space, ()))
        names = [leaf.spec.name for leaf in self._leaves]
        if not names:
            raise UserError(f"the observation space {space} holds no array; nothing can be learned from it")
        if len(set(names)) < len(names):
            raise UserError(f"two entries of the observation space get the same name: {', '.join(names)}")

    @property
    def specs(self) -> tuple[ArraySpec, ...]:
        return tuple(leaf.spec for leaf in self._leaves)

    def to_columns(self, observation: Any) -> Columns:
        """Arrays of the spec's dtypes. They share memory with `observation` where nothing is converted."""
        columns = {}
        for leaf in self._leaves:
            value = observation
            for key in leaf.path:
                value = value[key]
            if leaf.start is not None:
                value = value - leaf.start
            columns[leaf.spec.name] = np.asarray(value, dtype=leaf.spec.dtype)
        return columns


class ActionAdapter:
    """Turns actions as the policy gives them into members of the environment's batched space."""

    def __init__(self, space: Space[Any]) -> None:
        self.spec = _action_spec(space)
        self._space = space

    def to_env(self, action: np.ndarray) -> np.ndarray:
        space = self._space
        if isinstance(space, spaces.Discrete):
            return action + space.start if space.start else action
        assert isinstance(space, spaces.Box)
        clipped: np.ndarray = np.clip(action.astype(space.dtype, copy=False), space.low, space.high)
        return clipped


def _leaves(space: Space[Any], path: tuple[str | int, ...]) -> Iterator[_Leaf]:
    name = ".".join((OBSERVATION, *map(str, path)))
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            yield from _leaves(entry, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            yield from _leaves(entry, (*path, index))
    elif isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype).name
        if dtype not in DTYPES:
            raise UserError(
                f"{name}: dtype {dtype} of {space} is not supported; use one of {', '.join(DTYPES)}"
            )
        # Policies compute in float32: double precision would only double the bytes on the wire.
        yield _Leaf(ArraySpec(name, "float32" if dtype == "float64" else dtype, space.shape), path)
    elif isinstance(space, spaces.Discrete):
        yield _Leaf(ArraySpec(name, "int64", (), int(space.n)), path, _start(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        # One number of categories for all elements: the largest covers the others.
        spec = ArraySpec(name, "int64", space.shape, int(space.nvec.max()))
        yield _Leaf(spec, path, _start(space.start))
    elif isinstance(space, spaces.MultiBinary):
        yield _Leaf(ArraySpec(name, "int8", space.shape), path)
    else:
        raise UserError(f"{name}: the space {space} is not supported; supported are {_OBSERVATIONS}")


def _start(start: Any) -> np.ndarray | None:
    array = np.asarray(start, dtype=np.int64)
    return array if array.any() else None


def _action_spec(space: Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = tuple(float(x) for x in space.low.ravel())
        high = tuple(float(x) for x in space.high.ravel())
        return BoxAction(space.shape, low, high)
    raise UserError(f"action: the space {space} is not supported; supported are {_ACTIONS}")
