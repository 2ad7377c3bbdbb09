"""Gymnasium spaces as the run's spec, and values across that border.

Owns which spaces are supported. `SpaceAdapter` is what environments are adapted with: it flattens what they
show into named arrays and turns the policy's actions into what they take. NumPy only, no state, usable from
any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces

from shoal.codec import DTYPES
from shoal.envs.arrays import to_numpy
from shoal.envs.faults import BadValueError
from shoal.envs.masks import MaskAdapter
from shoal.errors import UserError
from shoal.records import (
    ACTION_MASK,
    OBSERVATION,
    ActionSpec,
    ArraySpec,
    BoxAction,
    Columns,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)

_OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary, and Box of floats"

MaskSource = Literal["auto", "info", "none"]


class SpaceAdapter:
    """What an environment shows and takes, both ways: observation, action mask and action."""

    def __init__(
        self, observation: Space[Any], action: Space[Any], masks: MaskSource = "auto", num: int = 1
    ) -> None:
        """`masks` is `env.action_mask`; `num` environments are shown at a time."""
        self.action = ActionAdapter(action)
        self._num = num
        self._mask: MaskAdapter | None = None
        self._mask_is_entry = False
        if masks == "info":
            self._mask = MaskAdapter(self.action.spec)
        elif masks == "auto" and isinstance(observation, spaces.Dict) and ACTION_MASK in observation.spaces:
            self._mask = MaskAdapter(self.action.spec)
            self._mask_is_entry = True
            self._mask.check_entry(observation[ACTION_MASK])
            others = {name: entry for name, entry in observation.items() if name != ACTION_MASK}
            observation = spaces.Dict(others)
        self.observation = ObservationAdapter(observation)

    def spec(self, env_id: str) -> EnvSpec:
        """The mask, if there is one, is the last array of the observation."""
        masks = () if self._mask is None else (self._mask.spec,)
        return EnvSpec(env_id, (*self.observation.specs, *masks), self.action.spec)

    def to_columns(self, observation: Any, info: Mapping[str, Any]) -> Columns:
        """Of a batch; shares memory with `observation` where it can. Raises BadValueError."""
        columns = self.observation.to_columns(observation, self._num)
        if self._mask is not None:
            if self._mask_is_entry:
                columns[ACTION_MASK] = self._mask.rows(observation[ACTION_MASK], self._num)
            else:
                columns[ACTION_MASK] = self._mask.from_info(info, self._num)
        return columns

    def empty(self) -> Columns:
        """Room for a batch that `write` fills."""
        columns = {
            spec.name: np.zeros((self._num, *spec.shape), spec.dtype) for spec in self.observation.specs
        }
        if self._mask is not None:
            columns[ACTION_MASK] = self._mask.everything(self._num)
        return columns

    def write(self, columns: Columns, row: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Of one environment, into its row. Raises BadValueError."""
        self.observation.write(columns, row, observation)
        if self._mask is not None:
            mask = observation[ACTION_MASK] if self._mask_is_entry else info.get(ACTION_MASK)
            columns[ACTION_MASK][row] = self._mask.row(mask)


@dataclass(frozen=True)
class _Leaf:
    """One array of the observation: where it is in the environment's structure, and its spec."""

    spec: ArraySpec
    path: tuple[str | int, ...]
    # What the environment counts categories from; they are sent counted from 0.
    start: np.ndarray | None = None

    def find(self, observation: Any) -> Any:
        try:
            for key in self.path:
                observation = observation[key]
        except (LookupError, TypeError):
            raise BadValueError(f"showed an observation without its entry {self.spec.name}") from None
        return observation


class ObservationAdapter:
    """Flattens observations of one space into columns, in the order of the space."""

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

    def to_columns(self, observation: Any, num: int) -> Columns:
        """Arrays of the spec's dtypes. They share memory with `observation` where nothing is converted."""
        columns = {}
        for leaf in self._leaves:
            array = to_numpy(leaf.find(observation))
            _check_shape(array.shape, (num, *leaf.spec.shape), leaf.spec.name)
            if leaf.start is not None:
                array = array - leaf.start
            columns[leaf.spec.name] = np.asarray(array, dtype=leaf.spec.dtype)
        return columns

    def write(self, columns: Columns, row: int, observation: Any) -> None:
        """One observation into its row."""
        for leaf in self._leaves:
            value = to_numpy(leaf.find(observation))
            _check_shape(value.shape, leaf.spec.shape, leaf.spec.name)
            columns[leaf.spec.name][row] = value if leaf.start is None else value - leaf.start


class ActionAdapter:
    """Turns actions as the policy gives them into members of the environment's batched space."""

    def __init__(self, space: Space[Any]) -> None:
        self.spec = _action_spec(space)
        self._space = space

    def to_env(self, action: np.ndarray) -> np.ndarray:
        space = self._space
        if isinstance(space, spaces.Discrete):
            return action + space.start if space.start else action
        if isinstance(space, spaces.Box):
            clipped: np.ndarray = np.clip(action.astype(space.dtype, copy=False), space.low, space.high)
            return clipped
        # A copy: what an environment keeps or changes must not be the actor's.
        shaped = action.reshape(len(action), *space.shape or ()).astype(space.dtype)
        return shaped + space.start if isinstance(space, spaces.MultiDiscrete) else shaped


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...], name: str) -> None:
    if shape != expected:
        raise BadValueError(f"showed {name} of shape {list(shape)} instead of {list(expected)}")


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
        sent = "float32" if dtype == "float64" else dtype
        yield _Leaf(ArraySpec(name, sent, space.shape, 0, *_bounds(space)), path)
    elif isinstance(space, spaces.Discrete):
        yield _Leaf(ArraySpec(name, "int64", (), int(space.n)), path, _start(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        # One number of categories for all elements: the largest covers the others.
        spec = ArraySpec(name, "int64", space.shape, int(space.nvec.max()))
        yield _Leaf(spec, path, _start(space.start))
    elif isinstance(space, spaces.MultiBinary):
        yield _Leaf(ArraySpec(name, "int8", space.shape, 0, 0.0, 1.0), path)
    else:
        raise UserError(f"{name}: the space {space} is not supported; supported are {_OBSERVATIONS}")


def _bounds(space: spaces.Box) -> tuple[float, float]:
    """The widest of any element; infinite for an array of none."""
    if not space.low.size:
        return -math.inf, math.inf
    return float(space.low.min()), float(space.high.max())


def _start(start: Any) -> np.ndarray | None:
    array = np.asarray(start, dtype=np.int64)
    return array if array.any() else None


def _action_spec(space: Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteAction(tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscreteAction((2,) * int(np.prod(space.shape)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = tuple(float(x) for x in space.low.ravel())
        high = tuple(float(x) for x in space.high.ravel())
        return BoxAction(space.shape, low, high)
    raise UserError(f"action: the space {space} is not supported; supported are {_ACTIONS}")
