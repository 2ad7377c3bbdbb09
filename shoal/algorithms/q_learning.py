"""What Ape-X and R2D2 do alike: double Q-learning, priorities. Pure functions, any device.

Nothing waits for the device.

Legend: T transitions, S = T + 1 rows, B environments or items, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.policy.masks import allowed_actions, hide
from shoal.records import ACTION_MASK

# An item whose errors are all 0 by chance is still sampled now and then.
_LEAST_PRIORITY = 1e-6


class Values(NamedTuple):
    """Of the actions taken (with gradients), of the best ones allowed, and what to bootstrap from.

    The bootstrap value is what the target network makes of the best action: of the network's choice if
    `double` (van Hasselt et al. 2016), else of its own.
    """

    taken_TB: Tensor
    best_SB: Tensor
    bootstrap_SB: Tensor


def values(batch: Batch, q_SBA: Tensor, target_q_SBA: Tensor, *, double: bool) -> Values:
    taken_TB = q_SBA[:-1].gather(-1, batch.action_SB[:-1].unsqueeze(-1)).squeeze(-1)
    mask_SBA = batch.observation.get(ACTION_MASK)
    allowed_SBA = None if mask_SBA is None else allowed_actions(mask_SBA)
    with torch.no_grad():
        best_SB, action_SB = hide(q_SBA, allowed_SBA).max(-1)
        if not double:
            return Values(taken_TB, best_SB, hide(target_q_SBA, allowed_SBA).amax(-1))
        bootstrap_SB = target_q_SBA.gather(-1, action_SB.unsqueeze(-1)).squeeze(-1)
        return Values(taken_TB, best_SB, bootstrap_SB)


@torch.no_grad()
def priority(error_TB: Tensor, valid_TB: Tensor, max_share: float) -> Tensor:
    """eta max |delta| + (1 - eta) mean |delta| of an item's steps, [B] (Kapturowski et al. 2019)."""
    error_TB = error_TB.abs() * valid_TB
    num_B = valid_TB.sum(0)
    mean_B = error_TB.sum(0) / num_B.clamp(min=1.0)
    mixed_B = torch.lerp(mean_B, error_TB.amax(0), max_share)
    return mixed_B.clamp(min=_LEAST_PRIORITY).where(num_B > 0, 0.0)


@torch.no_grad()
def curves(batch: Batch, found: Values, target_TB: Tensor) -> dict[str, Tensor]:
    """Means over the steps that count, without importance weights."""
    valid_TB = batch.valid_TB * batch.counts_B
    num = valid_TB.sum().clamp(min=1.0)

    def mean(values_TB: Tensor) -> Tensor:
        return (values_TB * valid_TB).sum() / num

    return {
        "td_error": mean((target_TB - found.taken_TB).abs()),
        "q_mean": mean(found.taken_TB),
        "q_max": mean(found.best_SB[:-1]),
        "target_mean": mean(target_TB),
    }
