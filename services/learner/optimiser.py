"""All parameters of a policy in one flat vector, and Adam on it.

One vector makes every step on all parameters (zeroing, the norm, Adam, the copy that is published) one
operation instead of one per layer. Adam is written out because the first step of `torch.optim` imports
`torch._dynamo`: more than a second before the first trained batch. Training thread only.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

# Each parameter starts on a 64-byte boundary, as an allocation of its own would.
_ALIGNMENT = 16

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class FlatParameters:
    """The module's parameters and gradients, moved into two vectors that the module's own are views of."""

    def __init__(self, module: nn.Module) -> None:
        named = dict(module.named_parameters())
        self._places: dict[str, tuple[int, torch.Size]] = {}
        size = 0
        for name, parameter in named.items():
            if parameter.dtype != torch.float32:
                raise TypeError(f"parameter {name} is {parameter.dtype}, not float32")
            self._places[name] = (size, parameter.shape)
            size += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        device = next(iter(named.values())).device
        self.data = torch.zeros(size, device=device)
        self.grad = torch.zeros(size, device=device)
        values, gradients = self.views(self.data), self.views(self.grad)
        with torch.no_grad():
            for name, parameter in named.items():
                values[name].copy_(parameter)
                parameter.data = values[name]
                # Backward adds into a gradient that is already there: it lands in the vector.
                parameter.grad = gradients[name]

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector of this layout by parameter name."""
        return {
            name: vector[start : start + shape.numel()].view(shape)
            for name, (start, shape) in self._places.items()
        }

    def arrays(self, vector: Tensor) -> dict[str, np.ndarray]:
        """A copy of a vector of this layout, by parameter name."""
        copy = vector.cpu().numpy().copy()
        return {
            name: copy[start : start + shape.numel()].reshape(shape)
            for name, (start, shape) in self._places.items()
        }


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) on a vector."""

    def __init__(self, parameters: FlatParameters, learning_rate: float) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate
        self._scratch = torch.empty_like(parameters.data)
        self.exp_avg = torch.zeros_like(parameters.data)
        self.exp_avg_sq = torch.zeros_like(parameters.data)
        self.num_steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.num_steps += 1
        gradient = self._parameters.grad
        self.exp_avg.lerp_(gradient, 1.0 - _BETA_1)
        self.exp_avg_sq.mul_(_BETA_2).addcmul_(gradient, gradient, value=1.0 - _BETA_2)
        correction_1 = 1.0 - _BETA_1**self.num_steps
        correction_2 = 1.0 - _BETA_2**self.num_steps
        torch.sqrt(self.exp_avg_sq, out=self._scratch)
        self._scratch.div_(math.sqrt(correction_2)).add_(_EPSILON)
        self._parameters.data.addcdiv_(self.exp_avg, self._scratch, value=-self._learning_rate / correction_1)
