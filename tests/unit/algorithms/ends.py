"""How the episodes of a small batch end, and its n-step returns by a walk from each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.batch import Batch

# Steps without a transition where `episode_ends` is in use: (t, b).
AUTORESET = ((2, 1), (3, 2))


class Ends(NamedTuple):
    terminated_SB: Tensor
    truncated_SB: Tensor
    first_SB: Tensor


def episode_ends(num_steps: int, num_envs: int) -> Ends:
    """Env 1 terminates at step 1, env 2 is truncated at step 2; all others run on."""
    ends = Ends(*torch.zeros(3, num_steps + 1, num_envs, dtype=torch.bool))
    ends.terminated_SB[1, 1] = True
    ends.truncated_SB[2, 2] = True
    for t, b in AUTORESET:
        ends.first_SB[t + 1, b] = True
    return ends


def slow_return(batch: Batch, t: int, b: int, n: int, discount: float) -> tuple[float, float, int]:
    """The sum of rewards, what the value of the row it leads to is worth, and that row."""
    total, worth = 0.0, 1.0
    last = min(t + n, len(batch.reward_SB) - 1)
    for row in range(t, last):
        total += worth * batch.reward_SB[row, b].item()
        worth *= discount
        if batch.terminated_SB[row, b]:
            return total, 0.0, row + 1
        if batch.truncated_SB[row, b]:
            return total, worth, row + 1
    return total, worth, last
