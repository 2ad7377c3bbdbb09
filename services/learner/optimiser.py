"""All parameters in one flat vector, and Adam on it.

One vector makes every step on all parameters (zeroing, the norm, Adam, the sum over learners, what is
published) one operation instead of one per layer. Adam is written out because the first step of `torch.optim`
imports `torch._dynamo`: more than a second before the first trained batch. Training thread only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from services.learner.peers import Peers, joined
from shoal.algorithms.algorithm import LossOutput

# Each parameter starts on a 64-byte boundary, as an allocation of its own would.
_ALIGNMENT = 16

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


def _one_group(name: str) -> str:
    return "all"


class FlatParameters:
    """The module's parameters and gradients, moved into two vectors that the module's own are views of.

    Parameters that need no gradient stay where they are. Those of a group lie together.
    """

    def __init__(self, module: nn.Module, group_of: Callable[[str], str] = _one_group) -> None:
        named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._places: dict[str, tuple[int, torch.Size]] = {}
        self.groups: dict[str, slice] = {}
        size = 0
        for group in dict.fromkeys(map(group_of, named)):
            start = size
            for name, parameter in named.items():
                if group_of(name) != group:
                    continue
                if parameter.dtype != torch.float32:
                    raise TypeError(f"parameter {name} is {parameter.dtype}, not float32")
                self._places[name] = (size, parameter.shape)
                size += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
            self.groups[group] = slice(start, size)
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

    def joined(self, peers: Peers, output: LossOutput) -> LossOutput:
        """After backward: the gradient, which stays here, and the loss of the batches of all learners."""
        return joined(peers, self.grad, output)

    def norms(self, groups: Sequence[str]) -> list[Tensor]:
        """Of the gradient, by group."""
        return [torch.linalg.vector_norm(self.grad[self.groups[group]]) for group in groups]

    def norm_of_data(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self.data)
        return norm

    def put_back(self) -> None:
        """After `data` has changed: the module sees it. Here its parameters are views."""

    def shapes(self) -> dict[str, torch.Size]:
        return {name: shape for name, (_, shape) in self._places.items()}

    def load(self, vector: Tensor, arrays: dict[str, np.ndarray]) -> None:
        """Into a vector of this layout."""
        for name, view in self.views(vector).items():
            view.copy_(torch.from_numpy(arrays[name]))

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
    """Adam (Kingma & Ba 2015, algorithm 1) on a vector, group by group: each has steps of its own."""

    def __init__(self, parameters: FlatParameters, learning_rate: Callable[[str], float]) -> None:
        self._parameters = parameters
        self._learning_rates = {group: learning_rate(group) for group in parameters.groups}
        self._scratch = torch.empty_like(parameters.data)
        self.exp_avg = torch.zeros_like(parameters.data)
        self.exp_avg_sq = torch.zeros_like(parameters.data)
        self.num_steps = dict.fromkeys(parameters.groups, 0)

    @torch.no_grad()
    def step(self, groups: Iterable[str], factor: float = 1.0) -> None:
        """`factor` on the learning rates."""
        for group in groups:
            self._step(group, self._learning_rates[group] * factor)

    def _step(self, group: str, learning_rate: float) -> None:
        self.num_steps[group] += 1
        num_steps, where = self.num_steps[group], self._parameters.groups[group]
        gradient, scratch = self._parameters.grad[where], self._scratch[where]
        exp_avg, exp_avg_sq = self.exp_avg[where], self.exp_avg_sq[where]
        exp_avg.lerp_(gradient, 1.0 - _BETA_1)
        exp_avg_sq.mul_(_BETA_2).addcmul_(gradient, gradient, value=1.0 - _BETA_2)
        correction_1 = 1.0 - _BETA_1**num_steps
        correction_2 = 1.0 - _BETA_2**num_steps
        torch.sqrt(exp_avg_sq, out=scratch)
        scratch.div_(math.sqrt(correction_2)).add_(_EPSILON)
        self._parameters.data[where].addcdiv_(exp_avg, scratch, value=-learning_rate / correction_1)
