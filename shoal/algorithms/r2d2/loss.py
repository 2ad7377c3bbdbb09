"""The loss of R2D2 (Kapturowski et al. 2019, section 2.3): n-step double Q-learning on rescaled values.

Pure function. A mean over valid steps after the burn-in, so that the learning rate depends neither on the
batch size nor on the length of sequences.

Legend: T transitions, S = T + 1 rows, B sequences, A actions.
"""

from __future__ import annotations

import torch

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.counted import counted
from shoal.algorithms.n_step import n_step
from shoal.algorithms.q_learning import curves, priority, values
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.rescaling import rescaled, unscaled
from shoal.policy.network import QPolicy


def r2d2_loss(policy: QPolicy, target: QPolicy, batch: Batch, config: R2d2Config) -> LossOutput:
    target_batch, batch = burnt_in(target, batch, config.burn_in), burnt_in(policy, batch, config.burn_in)
    q_SBA = policy(batch.observation, batch.first_SB, batch.state)
    with torch.no_grad():
        target_q_SBA = target(batch.observation, batch.first_SB, target_batch.state)
    found = values(batch, q_SBA, target_q_SBA, double=config.double)

    # y_t = h(sum of gamma^k r_t+k + gamma^n h^-1(Q(s_t+n, a*, theta-))), a* = argmax_a Q(s_t+n, a, theta)
    epsilon = config.rescale_epsilon
    returns = n_step(batch, config.n_step, config.discount)
    target_TB = rescaled(returns.target(unscaled(found.bootstrap_SB, epsilon)), epsilon)

    steps = counted(batch)
    loss = 0.5 * steps.mean((target_TB - found.taken_TB).square())

    # p = eta max |delta| + (1 - eta) mean |delta|
    priority_B = priority(target_TB - found.taken_TB.detach(), batch.valid_TB, config.priority_max_share)
    return LossOutput(loss, curves(batch, found, target_TB), steps.num, priority_B)


def burnt_in(policy: QPolicy, batch: Batch, num_steps: int) -> Batch:
    """The batch after its first steps, which only bring the stored state up to date with the policy."""
    if num_steps == 0:
        return batch
    seen = {name: tensor[:num_steps] for name, tensor in batch.observation.items()}
    return batch.since(num_steps, policy.state_after(seen, batch.first_SB[:num_steps], batch.state))
