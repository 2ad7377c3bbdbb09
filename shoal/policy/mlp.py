"""Fully connected layers, and the encoder made of them. One thread at a time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.policy.array_input import MAX_INPUTS, array_input
from shoal.records import ArraySpec

# Elements up to which the number of operations counts, not their size.
_FEW = 8192

Activation = Literal["tanh", "relu"]


class Tanh(nn.Module):
    """tanh; in float32 on a CPU as 2 sigmoid(2x) - 1, the same to 3e-7 in a third of the time.

    Few numbers with gradients are an exception: there three operations cost more than one slow one.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32 or not x.is_cpu or (x.requires_grad and x.numel() <= _FEW):
            return x.tanh()
        # rsub: -1 - (-2) sigmoid in one pass.
        return torch.rsub(torch.sigmoid(x + x), -1.0, alpha=-2.0)


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {"tanh": Tanh, "relu": nn.ReLU}


def linear(num_in: int, num_out: int, gain: float) -> nn.Linear:
    """A layer with orthogonal weights and no bias at the start."""
    layer = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Head(nn.Linear):
    """A last layer: it computes in float32, whatever autocast makes of the layers before it.

    Log probabilities and values are differences of its outputs, for which low precision has too few digits.
    """

    def forward(self, features: Tensor) -> Tensor:
        device = features.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(features)
        with torch.autocast(device, enabled=False):
            return super().forward(features.to(torch.float32))


def head(num_in: int, num_out: int, gain: float) -> Head:
    """A last layer with orthogonal weights and no bias at the start."""
    layer = Head(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def hidden_layers(num_in: int, hidden_sizes: tuple[int, ...], activation: Activation) -> nn.Sequential:
    """Layers of these sizes, each with its activation; none at all passes everything on."""
    gain = nn.init.calculate_gain(activation)
    layers: list[nn.Module] = []
    for units in hidden_sizes:
        layers += [linear(num_in, units, gain), _ACTIVATIONS[activation]()]
        num_in = units
    return nn.Sequential(*layers)


class MlpEncoder(nn.Module):
    """All arrays flattened and concatenated, then the hidden layers."""

    def __init__(
        self, observation: tuple[ArraySpec, ...], hidden_sizes: tuple[int, ...], activation: Activation
    ) -> None:
        super().__init__()
        self.names = tuple(array.name for array in observation)
        inputs = [array_input(array) for array in observation]
        self.inputs = nn.ModuleList(inputs)
        width = sum(array.width for array in inputs)
        if not 0 < width <= MAX_INPUTS:
            raise UserError(
                f"the observation has {width} inputs for the network (limits 1 and {MAX_INPUTS}): "
                "wrap the environment so that it shows more or less"
            )
        self.hidden = hidden_layers(width, hidden_sizes, activation)
        self.num_features = hidden_sizes[-1] if hidden_sizes else width

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        arrays = [
            to_floats(observation[name]) for name, to_floats in zip(self.names, self.inputs, strict=True)
        ]
        features = arrays[0] if len(arrays) == 1 else torch.cat(arrays, dim=-1)
        encoded: Tensor = self.hidden(features)
        return encoded
