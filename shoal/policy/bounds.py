"""Bounded Box actions: between the environment's numbers and the unit cube [-1, 1] that networks speak of.

One thread at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.records import BoxAction, EnvSpec

# What float32 has room for: bounds, and widths that can be divided by.
_MAX_BOUND = 1e30
_MIN_WIDTH = 1e-30


class Bounds(nn.Module):
    """Of all D elements of an action, flattened."""

    low: Tensor
    high: Tensor
    center: Tensor
    half_width: Tensor

    def __init__(self, spec: EnvSpec, kind: str) -> None:
        super().__init__()
        action = spec.action
        if not isinstance(action, BoxAction) or not _is_bounded(action):
            raise UserError(
                f"policy.kind is {kind!r}, which needs Box actions with finite bounds, low below high, and "
                f"{spec.env_id} has {action.describe()}: use an algorithm for those "
                "(docs/algorithms), or wrap the action space"
            )
        self.shape = action.shape
        low = torch.tensor(action.low, dtype=torch.float64)
        high = torch.tensor(action.high, dtype=torch.float64)
        for name, tensor in (
            ("low", low),
            ("high", high),
            ("center", (low + high) / 2),
            ("half_width", (high - low) / 2),
        ):
            self.register_buffer(name, tensor.float(), persistent=False)
        self.log_half_volume = float(((high - low) / 2).log().sum())
        self.log_volume = self.log_half_volume + len(action.low) * math.log(2.0)

    def from_unit(self, unit: Tensor) -> Tensor:
        """[..., D] in [-1, 1] as actions [..., *shape], within the bounds to the last digit."""
        flat = torch.addcmul(self.center, self.half_width, unit).clamp(self.low, self.high)
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions [..., *shape] as [..., D]."""
        leading = action.shape[: action.ndim - len(self.shape)]
        return (action.reshape(*leading, -1) - self.center) / self.half_width


def _is_bounded(action: BoxAction) -> bool:
    bounds = zip(action.low, action.high, strict=True)
    return all(-_MAX_BOUND <= low < high <= _MAX_BOUND and high - low >= _MIN_WIDTH for low, high in bounds)
