"""The loss of Ape-X DQN (Horgan et al. 2018, equation 1): n-step double Q-learning with prioritised replay.

Pure function. A mean over valid steps, so that the learning rate does not depend on the batch size. Items are
single transitions, or sequences, as frame stacks need them; the priority of a sequence is the mean of its
steps' errors.

Legend: T transitions, S = T + 1 rows, B environments or items, A actions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.counted import counted
from shoal.algorithms.n_step import n_step
from shoal.algorithms.q_learning import curves, priority, values
from shoal.policy.network import QPolicy


def apex_loss(policy: QPolicy, target: QPolicy, batch: Batch, config: ApexConfig) -> LossOutput:
    q_SBA, target_q_SBA = q_values(policy, target, batch)
    found = values(batch, q_SBA, target_q_SBA, double=config.double)

    # G_t = R_t+1 + ... + gamma^n-1 R_t+n + gamma^n q(S_t+n, argmax_a q(S_t+n, a, theta), theta-)
    target_TB = n_step(batch, config.n_step, config.discount).target(found.bootstrap_SB)

    # l_t = 1/2 (G_t - q(S_t, A_t, theta))^2, linear beyond delta.
    loss_TB = functional.huber_loss(found.taken_TB, target_TB, reduction="none", delta=config.huber_delta)
    steps = counted(batch)
    loss = steps.mean(loss_TB)

    # p_k = |G_t - q(S_t, A_t, theta)|
    priority_B = priority(target_TB - found.taken_TB.detach(), batch.valid_TB, max_share=0.0)
    return LossOutput(loss, curves(batch, found, target_TB), steps.num, priority_B)


def q_values(policy: QPolicy, target: QPolicy, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of both networks, with gradients of the first one's where an action was taken."""
    if batch.discount_SB is None:
        q_SBA = policy(batch.observation, batch.first_SB, batch.state)
        with torch.no_grad():
            return q_SBA, target(batch.observation, batch.first_SB, batch.state)
    # Row 0 of a single transition is learned, row 1 is bootstrapped from: two fifths of the work are saved.
    seen, shown = ({name: rows[i : i + 1] for name, rows in batch.observation.items()} for i in (0, 1))
    q_1BA = policy(seen, batch.first_SB[:1], {})
    with torch.no_grad():
        next_q_1BA = policy(shown, batch.first_SB[1:], {})
        target_q_1BA = target(shown, batch.first_SB[1:], {})
    return torch.cat([q_1BA, next_q_1BA]), target_q_1BA.expand(2, -1, -1)
