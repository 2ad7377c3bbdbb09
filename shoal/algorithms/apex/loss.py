"""The loss of Ape-X DQN (Horgan et al. 2018, equation 1): n-step double Q-learning with prioritised replay.

Pure function. A mean over valid steps, so that the learning rate does not depend on the batch size. Items are
single transitions, or sequences, as frame stacks need them; the priority of a sequence is the mean of its
steps' errors.

Legend: T transitions, S = T + 1 rows, B environments or items, A actions.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.n_step import n_step
from shoal.algorithms.q_learning import curves, priority, values, weighted_mean
from shoal.config.algorithms import ApexConfig
from shoal.policy.network import QPolicy


def apex_loss(policy: QPolicy, target: QPolicy, batch: Batch, config: ApexConfig) -> LossOutput:
    q_SBA = policy(batch.observation, batch.first_SB, batch.state)
    with torch.no_grad():
        target_q_SBA = target(batch.observation, batch.first_SB, batch.state)
    found = values(batch, q_SBA, target_q_SBA, double=config.double)

    # G_t = R_t+1 + ... + gamma^n-1 R_t+n + gamma^n q(S_t+n, argmax_a q(S_t+n, a, theta), theta-)
    target_TB = n_step(batch, config.n_step, config.discount).target(found.bootstrap_SB)

    # l_t = 1/2 (G_t - q(S_t, A_t, theta))^2, linear beyond delta.
    loss_TB = functional.huber_loss(found.taken_TB, target_TB, reduction="none", delta=config.huber_delta)
    loss, num = weighted_mean(loss_TB, batch)

    # p_k = |G_t - q(S_t, A_t, theta)|
    priority_B = priority(target_TB - found.taken_TB.detach(), batch.valid_TB, max_share=0.0)
    return LossOutput(loss, curves(batch, found, target_TB), num, priority_B)
