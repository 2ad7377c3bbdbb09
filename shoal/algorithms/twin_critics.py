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
from shoal.algorithms.counted import Counted
from shoal.algorithms.q_learning import priority


class CriticLoss(NamedTuple):
    loss: Tensor
    # Mean over both critics and an item's steps of |Q - y|.
    priority_B: Tensor
    metrics: dict[str, Tensor]


def critic_loss(q_2TB: Tensor, target_TB: Tensor, batch: Batch, steps: Counted) -> CriticLoss:
    """Half the squared error of both, added up."""
    error_2TB = q_2TB - target_TB
    loss = 0.5 * steps.mean(error_2TB.square().sum(0))
    with torch.no_grad():
        error_TB = error_2TB.abs().mean(0)
        metrics = {
            "critic_loss": loss.detach(),
            "q_mean": steps.average(q_2TB.mean(0)),
            "td_error": steps.average(error_TB),
        }
    return CriticLoss(loss, priority(error_TB, batch.valid_TB, max_share=0.0), metrics)


@contextmanager
def held_still(module: nn.Module) -> Iterator[None]:
    """What is computed meanwhile has gradients for its inputs, and none for the module's parameters."""
    # Those that a user has frozen stay so.
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
