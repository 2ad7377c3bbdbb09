"""Parameters that are divided among learners (FSDP2), for models that are larger than one GPU.

Stands in for `FlatParameters` where `learner.sharding` is `fsdp`. Linear and convolutional layers, which hold
most of a network, keep a part of their weights on each learner and put them together for as long as they
compute; the rest of the parameters is on all. Gradient, Adam and the norm live in a vector of this learner's
parts. What leaves is put together on all learners, which therefore ask for it together. Training thread only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from services.learner.flat import FlatParameters
from services.learner.peers import LEAST_WEIGHT, Peers
from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch


def shard(module: nn.Module, device: torch.device, num_learners: int) -> None:
    """Divide the layers, one after the other, on their way to the device: it never holds all of them."""
    # Takes seconds, for those who ask for it.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # What is meant is mended below.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = init_device_mesh(device.type, (num_learners,))
    for layer in module.modules():
        if isinstance(layer, nn.ReLU):
            # What is changed in place no longer tells a divided layer that backward has come to it.
            layer.inplace = False
        if isinstance(layer, nn.Linear | nn.Conv2d):
            divided: Any = fully_shard(layer, mesh=mesh)
            # Sums, as gloo can: losses are weighted, and the sum of weights is known after backward.
            divided.set_force_sum_reduction_for_comms(True)
            divided.set_gradient_divide_factor(1.0)


def weighted(loss: Callable[[Batch], LossOutput]) -> Callable[[Batch], LossOutput]:
    """Gradients are added up over learners during backward: each loss in proportion to its weight."""

    def weigh(batch: Batch) -> LossOutput:
        output = loss(batch)
        return replace(output, loss=output.loss * output.weight)

    return weigh


class ShardedParameters(FlatParameters):
    """This learner's parts of the parameters of a module that was divided by `shard`."""

    def __init__(self, module: nn.Module, group_of: Callable[[str], str], peers: Peers) -> None:
        self._named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._peers = peers
        self._places: dict[str, tuple[int, torch.Size]] = {}
        self.groups: dict[str, slice] = {}
        # Those that all learners have.
        self._common = [name for name, p in self._named.items() if not _is_divided(p)]
        size = 0
        for group in dict.fromkeys(map(group_of, self._named)):
            start = size
            for name, parameter in self._named.items():
                if group_of(name) == group:
                    self._places[name] = (size, _own(parameter).shape)
                    size += _own(parameter).numel()
            self.groups[group] = slice(start, size)
        device = next(iter(self._named.values())).device
        self.data = torch.zeros(size, device=device)
        self.grad = torch.zeros(size, device=device)
        # What counts here for a norm over all: the chief counts what all have.
        self._counts = torch.ones(size, device=device)
        counts = self.views(self._counts)
        for name in self._common:
            counts[name].fill_(float(peers.rank == 0))
        for name, view in self.views(self.data).items():
            view.copy_(_own(self._named[name]).detach())

    def joined(self, peers: Peers, output: LossOutput) -> LossOutput:
        gradients = self.views(self.grad)
        for name, parameter in self._named.items():
            if parameter.grad is None:
                gradients[name].zero_()
            else:
                gradients[name].copy_(_own(parameter.grad))
                parameter.grad = None
        weight = output.weight.detach().to(self.grad).reshape(1)
        metrics = [value.to(self.grad) * weight[0] for value in output.metrics.values()]
        scalars = torch.stack([output.loss.detach().to(self.grad), *metrics])
        common = [gradients[name].flatten() for name in self._common]
        summed = peers.sum(torch.cat([*common, scalars, weight]))
        start = 0
        for part in common:
            part.copy_(summed[start : start + part.numel()])
            start += part.numel()
        whole = summed[-1]
        divisor = whole.clamp(min=LEAST_WEIGHT)
        self.grad.div_(divisor)
        loss, *means = (summed[start:-1] / divisor).unbind()
        return replace(output, loss=loss, metrics=dict(zip(output.metrics, means, strict=True)), weight=whole)

    def norms(self, groups: Sequence[str]) -> list[Tensor]:
        return self._norms(self.grad, [self.groups[group] for group in groups])

    def norm_of_data(self) -> Tensor:
        return self._norms(self.data, [slice(None)])[0]

    def _norms(self, vector: Tensor, places: Sequence[slice]) -> list[Tensor]:
        squares = [(vector[place].square() * self._counts[place]).sum() for place in places]
        return list(self._peers.sum(torch.stack(squares)).sqrt().unbind())

    @torch.no_grad()
    def put_back(self) -> None:
        for name, view in self.views(self.data).items():
            _own(self._named[name]).copy_(view)

    def arrays(self, vector: Tensor) -> dict[str, np.ndarray]:
        """All of it, on all learners, which call this together."""
        return {
            name: _whole(view, self._named[name]).cpu().numpy().copy()
            for name, view in self.views(vector).items()
        }

    def shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in self._named.items()}

    def load(self, vector: Tensor, arrays: dict[str, np.ndarray]) -> None:
        for name, view in self.views(vector).items():
            whole = torch.from_numpy(arrays[name])
            if name in self._common:
                view.copy_(whole)
                continue
            parts = whole.chunk(self._peers.size)
            if self._peers.rank < len(parts):
                view.copy_(parts[self._peers.rank])


def _is_divided(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def _own(tensor: Any) -> Tensor:
    """The part of this learner."""
    own: Tensor = tensor.to_local() if _is_divided(tensor) else tensor
    return own


def _whole(own: Tensor, parameter: Any) -> Tensor:
    """Put together from the parts of all."""
    if not _is_divided(parameter):
        return own
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    whole: Tensor = DTensor.from_local(
        own, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    ).full_tensor()
    return whole
