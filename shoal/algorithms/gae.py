"""Generalised advantage estimation (Schulman et al. 2016, equation 16). A pure function, no gradients.

Legend: T transitions, S = T + 1 rows, B environments.

A step that is not valid (an autoreset step) carries no transition: its advantage is 0, and so the sum of the
episode before it ends there. Its observation is the true last one of that episode, so a truncated episode
bootstraps from it and a terminated one (discount 0) from nothing, without a special case.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.scan import backward_scan


class Gae(NamedTuple):
    """Advantages of the policy gradient, and targets of the value function."""

    advantage_TB: Tensor
    return_TB: Tensor


@torch.no_grad()
def gae(
    *,
    reward_TB: Tensor,
    discount_TB: Tensor,
    value_SB: Tensor,
    valid_TB: Tensor,
    gae_lambda: float,
) -> Gae:
    """`discount_TB` is gamma, 0 where the episode terminated."""
    value_TB, next_value_TB = value_SB[:-1], value_SB[1:]

    # delta_t = r_t + gamma_t V(x_t+1) - V(x_t)
    delta_TB = reward_TB + discount_TB * next_value_TB - value_TB

    # A_t = delta_t + gamma_t lambda A_t+1
    advantage_TB = backward_scan(delta_TB * valid_TB, discount_TB * valid_TB * gae_lambda)
    return Gae(advantage_TB, advantage_TB + value_TB)
