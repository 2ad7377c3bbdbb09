"""The other learners of a run, as one of them sees them: sums, and what each tells all.

`Peers` is the seam: `Alone` is a single learner, `services.learner.group` is several. Every learner makes the
same calls in the same order, each of which returns when all have made it. Training thread only.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.algorithm import LossOutput
from shoal.errors import ShoalError

# Sums of weights are 0 if nothing counts: what is divided by them is then 0 too, and stays so.
LEAST_WEIGHT = 1e-8


class PeersLostError(ShoalError):
    """Another learner has gone or is silent: this one cannot go on without it."""


class Peers(Protocol):
    """Rank 0 is the chief. Every method raises PeersLostError."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, vector: Tensor) -> Tensor:
        """Over all learners, in place; the same on all, bit by bit."""
        ...

    def gather(self, numbers: np.ndarray) -> list[np.ndarray]:
        """What each has given, in order of rank; all give the same shape and type."""
        ...

    def from_chief(self, data: bytes) -> bytes:
        """What the chief has given; what others give does not count."""
        ...


class Alone:
    """No others."""

    rank = 0
    size = 1

    def sum(self, vector: Tensor) -> Tensor:
        return vector

    def gather(self, numbers: np.ndarray) -> list[np.ndarray]:
        return [numbers]

    def from_chief(self, data: bytes) -> bytes:
        return data


def joined(peers: Peers, gradient: Tensor, output: LossOutput) -> LossOutput:
    """The gradient, in place, and the loss of the batches of all learners as if they were one.

    One sum of one vector: gradient, loss and metrics in proportion to the weight of each batch, and that
    weight. What is not finite on one learner is so on all: they stop alike.
    """
    if peers.size == 1:
        return output
    weight = output.weight.detach().to(gradient).reshape(1)
    scalars = torch.stack([output.loss.detach(), *output.metrics.values()]).to(gradient)
    summed = peers.sum(torch.cat([gradient * weight, scalars * weight, weight]))
    whole = summed[-1]
    means = summed[:-1] / whole.clamp(min=LEAST_WEIGHT)
    gradient.copy_(means[: gradient.numel()])
    loss, *metrics = means[gradient.numel() :].unbind()
    return LossOutput(
        loss=loss,
        metrics=dict(zip(output.metrics, metrics, strict=True)),
        weight=whole,
        priority_B=output.priority_B,
        groups=output.groups,
    )
