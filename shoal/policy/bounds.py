"""The units that policies count Box actions in: half widths of their bounds, from the middle.

A network's outputs are of the order of 1, whatever numbers an environment takes. One thread at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.records import BoxAction, EnvSpec, has_width


class ActionUnits(nn.Module):
    """Between actions [..., *shape] and their D elements in those units, flattened. Nothing is clipped.

    An element without two finite bounds stays in the environment's own units.
    """

    center: Tensor
    half_width: Tensor

    def __init__(self, action: BoxAction, scaled: bool = True) -> None:
        """`scaled`: false leaves all elements in the environment's units."""
        super().__init__()
        self.shape = action.shape
        bounds = [
            (low, high) if scaled and has_width(low, high) else (-1.0, 1.0)
            for low, high in zip(action.low, action.high, strict=True)
        ]
        low, high = torch.tensor(bounds, dtype=torch.float64).reshape(-1, 2).unbind(-1)
        self.register_buffer("center", ((low + high) / 2).float(), persistent=False)
        self.register_buffer("half_width", ((high - low) / 2).float(), persistent=False)
        self.log_half_volume = float(((high - low) / 2).log().sum())

    def from_unit(self, unit: Tensor) -> Tensor:
        """[..., D] as actions [..., *shape]."""
        flat = torch.addcmul(self.center, self.half_width, unit)
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions [..., *shape] as [..., D]."""
        leading = action.shape[: action.ndim - len(self.shape)]
        return (action.reshape(*leading, -1) - self.center) / self.half_width


class Bounds(ActionUnits):
    """Units of actions that are bounded on all sides, as tanh policies need them: the cube [-1, 1]."""

    low: Tensor
    high: Tensor

    def __init__(self, spec: EnvSpec, kind: str) -> None:
        action = spec.action
        if not isinstance(action, BoxAction) or action.num_unbounded:
            raise UserError(
                f"policy.kind is {kind!r}, which needs Box actions with finite bounds, low below high, and "
                f"{spec.env_id} has {action.describe()}: use an algorithm for those "
                "(docs/algorithms), or wrap the action space"
            )
        super().__init__(action)
        for name, values in (("low", action.low), ("high", action.high)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)
        self.log_volume = self.log_half_volume + len(action.low) * math.log(2.0)

    def from_unit(self, unit: Tensor) -> Tensor:
        """[..., D] in [-1, 1] as actions [..., *shape], within the bounds to the last digit."""
        flat = torch.addcmul(self.center, self.half_width, unit).clamp(self.low, self.high)
        return flat.reshape(*flat.shape[:-1], *self.shape)
