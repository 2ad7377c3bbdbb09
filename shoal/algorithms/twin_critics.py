"""What SAC and TD3 do alike: twin critics learn the same targets, the policy learns from critics held still.

Pure functions. Nothing waits for the device.

Legend: T transitions, B environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch
from shoal.algorithms.q_learning import priority


class Counted(NamedTuple):
    """How much each step counts: not at all if it has no transition, else as its importance weight says.

    Means are over the number of steps that count, so that the weights scale each step's own gradient.
    """

    weight_TB: Tensor
    num: Tensor

    def mean(self, values_TB: Tensor) -> Tensor:
        """Of a loss."""
        return (values_TB * self.weight_TB).sum() / self.num

    def average(self, values_TB: Tensor) -> Tensor:
        """Of a metric, which weights must not make smaller."""
        return (values_TB * self.weight_TB).sum() / self.weight_TB.sum().clamp(min=1e-8)


def counted(batch: Batch) -> Counted:
    weight_TB = batch.valid_TB * batch.weight_B
    return Counted(weight_TB, weight_TB.count_nonzero().clamp(min=1).to(weight_TB.dtype))


class CriticLoss(NamedTuple):
    loss: Tensor
    # Mean over both critics and an item's steps of |Q - y|.
    priority_B: Tensor
    metrics: dict[str, Tensor]


def critic_loss(q_TB: tuple[Tensor, Tensor], target_TB: Tensor, batch: Batch, steps: Counted) -> CriticLoss:
    """Half the squared error of both, added up."""
    one_TB, two_TB = (value_TB - target_TB for value_TB in q_TB)
    loss = 0.5 * steps.mean(one_TB.square() + two_TB.square())
    with torch.no_grad():
        error_TB = 0.5 * (one_TB.abs() + two_TB.abs())
        metrics = {
            "critic_loss": loss.detach(),
            "q_mean": steps.average(0.5 * (q_TB[0] + q_TB[1])),
            "td_error": steps.average(error_TB),
        }
    return CriticLoss(loss, priority(error_TB, batch.valid_TB, max_share=0.0), metrics)


@contextmanager
def held_still(module: nn.Module) -> Iterator[None]:
    """What is computed meanwhile has gradients for its inputs, and none for the module's parameters."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
