"""V-trace targets (Espeholt et al. 2018, section 4.1). Pure functions, no gradients, any device.

Legend: T transitions, S = T + 1 rows, B environments.

A step that is not valid (an autoreset step) carries no transition: with rho = c = 0 there its target is
V of its own observation. That observation is the true last one of the episode before, so a truncated
episode bootstraps from it and a terminated one (discount 0) from nothing, without a special case.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.scan import backward_scan


class VTrace(NamedTuple):
    """Targets of the value function, advantages of the policy gradient, and the clipped rho used."""

    vs_TB: Tensor
    advantage_TB: Tensor
    rho_TB: Tensor


@torch.no_grad()
def vtrace(
    *,
    log_rho_TB: Tensor,
    reward_TB: Tensor,
    discount_TB: Tensor,
    value_SB: Tensor,
    valid_TB: Tensor,
    rho_clip: float,
    c_clip: float,
    trace_lambda: float,
) -> VTrace:
    """`log_rho_TB` is log pi(a|x) - log mu(a|x); `discount_TB` is gamma, 0 where the episode terminated."""
    value_TB, next_value_TB = value_SB[:-1], value_SB[1:]

    # rho_t = min(rho_bar, pi/mu) and c_t = lambda min(c_bar, pi/mu), clipped before they are masked: an
    # infinite ratio times 0 would be NaN.
    ratio_TB = log_rho_TB.exp()
    rho_TB = ratio_TB.clamp(max=rho_clip) * valid_TB
    c_TB = rho_TB if c_clip == rho_clip else ratio_TB.clamp(max=c_clip) * valid_TB

    # delta_t V = rho_t (r_t + gamma_t V(x_t+1) - V(x_t))
    delta_TB = rho_TB * (reward_TB + discount_TB * next_value_TB - value_TB)

    # Remark 1 of the paper: v_s - V(x_s) = delta_s V + gamma_s c_s (v_s+1 - V(x_s+1))
    excess_TB = backward_scan(delta_TB, discount_TB * c_TB * trace_lambda)
    vs_TB = value_TB + excess_TB

    # Policy gradient: rho_s (r_s + gamma_s v_s+1 - V(x_s)), with v = V at the last row.
    next_vs_TB = torch.cat([vs_TB[1:], value_SB[-1:]])
    advantage_TB = rho_TB * (reward_TB + discount_TB * next_vs_TB - value_TB)
    return VTrace(vs_TB, advantage_TB, rho_TB)
