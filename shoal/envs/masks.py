"""Action masks: which actions an environment allows, as one int8 array per environment.

Owns where masks come from and what shapes they may have. Used by `shoal.envs.spaces` only; plain NumPy, no
state, usable from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from shoal.envs.arrays import to_numpy
from shoal.envs.faults import BadValueError
from shoal.errors import UserError
from shoal.records import ACTION_MASK, ActionSpec, ArraySpec, BoxAction, DiscreteAction

# Vector environments say by `_name` whose entries of `info[name]` count.
_IS_GIVEN = f"_{ACTION_MASK}"


class MaskAdapter:
    """Masks of one action space: [n], or [sum(nvec)] with the choices of each part one after another.

    One that allows nothing, as many environments show at the end of an episode, becomes one that allows
    everything: an action must be drawn even where it is ignored.
    """

    def __init__(self, action: ActionSpec) -> None:
        if isinstance(action, BoxAction):
            raise UserError(
                f"an action mask needs discrete actions, but the actions are {action.describe()}; "
                "set env.action_mask to none"
            )
        self._sizes = (action.n,) if isinstance(action, DiscreteAction) else action.nvec
        self._starts = np.cumsum([0, *self._sizes[:-1]])
        self._action = action
        self.spec = ArraySpec(ACTION_MASK, "int8", (sum(self._sizes),))

    def check_entry(self, space: Space[Any]) -> None:
        """Refuses an entry of the observation whose shape does not fit the actions."""
        parts = space.spaces if isinstance(space, spaces.Tuple) else (space,)
        shapes = [part.shape for part in parts]
        flat = all(shape is not None and len(shape) == 1 for shape in shapes)
        size = sum(shape[0] for shape in shapes if shape)
        if not flat or (size,) != self.spec.shape:
            raise UserError(
                f"the observation's entry {ACTION_MASK!r} is {space}, but a mask of the actions "
                f"{self._action.describe()} has shape {list(self.spec.shape)}; "
                "set env.action_mask to none if it is something else"
            )

    def everything(self, num: int) -> np.ndarray:
        return np.ones((num, *self.spec.shape), np.int8)

    def row(self, mask: Any) -> np.ndarray:
        """Of one environment; None allows everything. Raises BadValueError."""
        return self.everything(1)[0] if mask is None else self._checked(mask, ())

    def rows(self, masks: Any, num: int) -> np.ndarray:
        """Of a batch: an array, or one for each part of the action. Raises BadValueError."""
        return self._checked(masks, (num,))

    def from_info(self, info: Mapping[str, Any], num: int) -> np.ndarray:
        """Of the info of a vector environment, which may lack some or all of them."""
        masks = info.get(ACTION_MASK)
        if masks is None:
            return self.everything(num)
        given = to_numpy(info[_IS_GIVEN]).astype(np.bool_) if _IS_GIVEN in info else np.ones(num, np.bool_)
        if isinstance(masks, np.ndarray) and masks.dtype == object:
            each = [self.row(mask if there else None) for mask, there in zip(masks, given, strict=True)]
            return np.stack(each)
        rows = self.rows(masks, num)
        rows[~given] = 1
        return rows

    def _checked(self, mask: Any, leading: tuple[int, ...]) -> np.ndarray:
        if isinstance(mask, tuple) and any(np.ndim(part) for part in mask):
            array = np.concatenate([to_numpy(part) for part in mask], axis=-1)
        else:
            array = to_numpy(mask)
        expected = (*leading, *self.spec.shape)
        if array.shape != expected:
            raise BadValueError(
                f"showed an action mask of shape {list(array.shape)} instead of {list(expected)}, which the "
                f"actions {self._action.describe()} need"
            )
        allowed: np.ndarray = (array != 0).astype(np.int8)
        nothing = np.maximum.reduceat(allowed, self._starts, axis=-1) == 0
        if nothing.any():
            allowed |= np.repeat(nothing, self._sizes, axis=-1).astype(np.int8)
        return allowed
