"""What asynchronous PPO's objective (`shoal.algorithms.clipped`) is computed from: V-trace.

Three policies have a part in it: mu, which acted and may be several versions old; the proximal one, as it is
when training on a batch begins; and pi, which the passes move away from it. With rho = min(rho_bar, prox/mu),
targets v_s and values V of the beginning, a batch drawn by mu gives

    L = E[ min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) ],   r = pi/prox,
    A = rho (r_s + gamma v_s+1 - V(x_s)),

where what is in brackets is normalised before rho weighs it: a constant taken from it then changes nothing
in the mean. The clip limits how far one batch moves the policy, however old its data are; how old they are
is the business of rho alone. That a ratio is better taken to a policy near the new one than to the one that
acted is from IMPACT (Luo et al. 2020, arXiv:1912.00167; there that policy is a target network), and the split
of the two ratios is that of the decoupled objective of Hilton et al. (2022, arXiv:2110.00641). V-trace
targets with a clipped objective are also in Sample Factory (Petrenko et al. 2020, arXiv:2006.11751), which
takes its ratio to mu. A pure function.

Legend: T transitions, S = T + 1 rows, B environments, P parameters of the action distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.clipped import (
    ADVANTAGE,
    OLD_LOG_PROB,
    OLD_VALUE,
    RETURN,
    RHO,
    action_distribution,
)
from shoal.algorithms.vtrace import vtrace
from shoal.policy.network import ActorCritic
from shoal.records import LOG_PROB


def appo_targets(policy: ActorCritic, batch: Batch, config: AppoConfig) -> dict[str, Tensor]:
    params_SBP, value_SB = policy(batch.observation, batch.first_SB, batch.state)
    log_prox_TB = action_distribution(policy, params_SBP, batch).log_prob(batch.action_SB[:-1])
    reward_TB = batch.reward_SB[:-1]
    discount_TB = batch.terminated_SB[:-1].logical_not() * config.discount
    vs_TB, _, rho_TB = vtrace(
        log_rho_TB=log_prox_TB - batch.behaviour[LOG_PROB][:-1],
        reward_TB=reward_TB,
        discount_TB=discount_TB,
        value_SB=value_SB,
        valid_TB=batch.valid_TB,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        trace_lambda=config.trace_lambda,
    )
    # V-trace's own advantage is this one times rho.
    next_vs_TB = torch.cat([vs_TB[1:], value_SB[-1:]])
    return {
        ADVANTAGE: reward_TB + discount_TB * next_vs_TB - value_SB[:-1],
        RETURN: vs_TB,
        RHO: rho_TB,
        OLD_LOG_PROB: log_prox_TB,
        OLD_VALUE: value_SB[:-1],
    }
