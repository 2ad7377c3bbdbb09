"""Encoders: from the arrays of an observation to one vector of features.

Built by `shoal.policy.network`. Used by inference ([B, ...]) and by the learner ([T+1, B, ...]).
One thread at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.config.tree import PolicySection
from shoal.errors import UserError
from shoal.records import ArraySpec

# A spec comes off a socket: it must not be able to ask for a layer of any size.
MAX_INPUTS = 1 << 20

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def linear(num_in: int, num_out: int, gain: float) -> nn.Linear:
    """A layer with orthogonal weights and no bias at the start."""
    layer = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ArrayInput(nn.Module):
    """One array as floats [..., width]: categories one-hot, uint8 scaled to [0, 1], the rest as it is."""

    categories: Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.rank = len(spec.shape)
        self.width = math.prod(spec.shape) * max(1, spec.num_categories)
        self.one_hot = spec.num_categories > 0
        self.scale = 1.0 / 255.0 if spec.dtype == "uint8" and not self.one_hot else 1.0
        if self.width > MAX_INPUTS:
            raise UserError(
                f"{spec.name} has {self.width} inputs for the network (limit {MAX_INPUTS}): "
                "wrap the environment so that it shows less"
            )
        num_categories = spec.num_categories if self.one_hot else 0
        self.register_buffer("categories", torch.arange(num_categories), persistent=False)

    def forward(self, array: Tensor) -> Tensor:
        leading = array.shape[: array.ndim - self.rank]
        if self.one_hot:
            # Compared, not scattered: a category out of range becomes zeros instead of a crash.
            flat = array.to(torch.int64).unsqueeze(-1) == self.categories
            return flat.to(torch.float32).reshape(*leading, self.width)
        flat = array.to(torch.float32)
        if self.scale != 1.0:
            flat = flat * self.scale
        return flat if self.rank == 1 else flat.reshape(*leading, self.width)


class MlpEncoder(nn.Module):
    """All arrays flattened and concatenated, then the hidden layers."""

    def __init__(self, config: PolicySection, observation: tuple[ArraySpec, ...]) -> None:
        super().__init__()
        if not observation:
            raise UserError("the environment shows no observation: nothing to learn from")
        self.names = tuple(spec.name for spec in observation)
        inputs = [ArrayInput(spec) for spec in observation]
        self.inputs = nn.ModuleList(inputs)
        width = sum(array.width for array in inputs)
        if not 0 < width <= MAX_INPUTS:
            raise UserError(
                f"the observation has {width} inputs for the network (limits 1 and {MAX_INPUTS}): "
                "wrap the environment so that it shows more or less"
            )
        gain = nn.init.calculate_gain(config.activation)
        layers: list[nn.Module] = []
        for units in config.hidden_sizes:
            layers += [linear(width, units, gain), _ACTIVATIONS[config.activation]()]
            width = units
        self.hidden = nn.Sequential(*layers)
        self.num_features = width

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        arrays = [
            to_floats(observation[name]) for name, to_floats in zip(self.names, self.inputs, strict=True)
        ]
        features = arrays[0] if len(arrays) == 1 else torch.cat(arrays, dim=-1)
        encoded: Tensor = self.hidden(features)
        return encoded
