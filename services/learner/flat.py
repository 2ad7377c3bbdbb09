"""All parameters of a module, and their gradients, in one flat vector each.

One vector makes every step on all parameters (zeroing, the norm, the optimiser, the sum over learners, what
is published) one operation instead of one per layer. Training thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from services.learner.peers import Peers, joined
from shoal.algorithms.algorithm import LossOutput

# Each parameter starts on a 64-byte boundary, as an allocation of its own would.
_ALIGNMENT = 16


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
