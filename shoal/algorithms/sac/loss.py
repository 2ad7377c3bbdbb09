"""The losses of SAC (Haarnoja et al. 2018, arXiv:1812.05905): critics, policy and temperature, added up.

Pure function. Each part has gradients for its own parameters only, so one backward pass serves all three.
Densities are of actions in half widths of their bounds: what the entropy is does not depend on the units that
an environment counts its actions in.

Legend: T transitions, B environments, D elements of an action, P parameters of the action distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.bootstrap import Rows, bootstrapped, rows_of_steps
from shoal.algorithms.counted import counted
from shoal.algorithms.n_step import n_step
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.twin_critics import critic_loss, held_still
from shoal.policy.network import SoftActorCritic
from shoal.policy.twin_q import Critics


def sac_loss(
    policy: SoftActorCritic,
    target_critics: Critics,
    log_temperature: Tensor,
    batch: Batch,
    config: SacConfig,
) -> LossOutput:
    rows = rows_of_steps(batch)
    steps = counted(batch)
    temperature = log_temperature.exp()

    def sampled(where: Rows) -> tuple[Tensor, Tensor]:
        action_TB, log_pi_TB = policy.distribution(policy(*where)).rsample()
        return action_TB, log_pi_TB + policy.bounds.log_half_volume

    def soft_value(where: Rows) -> Tensor:
        """V(s) = min Q'(s, a) - alpha log pi(a|s), with a ~ pi (equation 3)."""
        action_TB, log_pi_TB = sampled(where)
        return torch.minimum(*policy.q_values(*where, action_TB, target_critics)) - temperature * log_pi_TB

    with torch.no_grad():
        target_TB = bootstrapped(batch, n_step(batch, config.n_step, config.discount), soft_value)

    # J_Q = 1/2 (Q(s, a) - y)^2 (equation 5).
    critics = critic_loss(policy.q_values(*rows, batch.action_SB[:-1]), target_TB, batch, steps)

    # J_pi = alpha log pi(a|s) - min Q(s, a), with a = f(noise; s) (equation 9).
    action_TB, log_pi_TB = sampled(rows)
    with held_still(policy.critics):
        q_TB = torch.minimum(*policy.q_values(*rows, action_TB))
    actor_loss = steps.mean(temperature.detach() * log_pi_TB - q_TB)

    # J(alpha) = -alpha (log pi(a|s) + target entropy) (equation 18).
    loss = critics.loss + actor_loss
    if config.learn_temperature:
        loss = loss - temperature * steps.mean(log_pi_TB.detach() + target_entropy(policy, config))

    metrics = critics.metrics | {
        "actor_loss": actor_loss.detach(),
        "entropy": -steps.average(log_pi_TB.detach()),
        "temperature": temperature.detach(),
    }
    return LossOutput(loss, metrics, steps.num, critics.priority_B)


def target_entropy(policy: SoftActorCritic, config: SacConfig) -> float:
    return -float(policy.bounds.center.numel()) if config.target_entropy is None else config.target_entropy
