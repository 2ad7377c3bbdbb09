"""The IMPALA loss (Espeholt et al. 2018, section 4.2): policy gradient, value error, entropy bonus.

Pure function. Sums of the paper are means over valid steps here, so that the learning rate does not
depend on the batch size. Nothing waits for the device.

Legend: T transitions, S = T + 1 rows, B environments, P parameters of the action distribution, A actions.
"""

from __future__ import annotations

import torch

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.explained_variance import explained_variance
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.vtrace import vtrace
from shoal.policy.network import ActorCritic
from shoal.records import ACTION_MASK, LOG_PROB


def impala_loss(policy: ActorCritic, batch: Batch, config: ImpalaConfig) -> LossOutput:
    params_SBP, value_SB = policy(batch.observation, batch.first_SB, batch.state)
    mask_SBA = batch.observation.get(ACTION_MASK)
    pi = policy.distribution(params_SBP[:-1], None if mask_SBA is None else mask_SBA[:-1])
    log_pi_TB = pi.log_prob(batch.action_SB[:-1])
    log_mu_TB = batch.behaviour[LOG_PROB][:-1]

    valid_TB = batch.valid_TB
    weight_TB = valid_TB * batch.weight_B
    weight = weight_TB.sum()
    num_valid = weight.clamp(min=1e-8)

    targets = vtrace(
        log_rho_TB=log_pi_TB.detach() - log_mu_TB,
        reward_TB=batch.reward_SB[:-1],
        discount_TB=batch.terminated_SB[:-1].logical_not() * config.discount,
        value_SB=value_SB.detach(),
        valid_TB=valid_TB,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        trace_lambda=config.trace_lambda,
    )

    # rho_s grad log pi(a_s|x_s) (r_s + gamma v_s+1 - V(x_s)); the advantage is 0 where not valid.
    policy_loss = -(targets.advantage_TB * log_pi_TB * weight_TB).sum() / num_valid

    # The l2 loss between V(x_s) and v_s; their difference is 0 where not valid.
    error_TB = targets.vs_TB - value_SB[:-1]
    value_loss = 0.5 * (error_TB.square() * weight_TB).sum() / num_valid

    entropy = (pi.entropy() * weight_TB).sum() / num_valid

    loss = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    with torch.no_grad():
        mean = (targets.advantage_TB * weight_TB).sum() / num_valid
        variance = ((targets.advantage_TB - mean).square() * weight_TB).sum() / num_valid
        metrics = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "advantage_deviation": variance.sqrt(),
            "mean_rho": (targets.rho_TB * weight_TB).sum() / num_valid,
            "explained_variance": explained_variance(error_TB.detach(), targets.vs_TB, weight_TB),
        }
    return LossOutput(loss, metrics, weight)
