"""The losses of TD3 (Fujimoto et al. 2018, algorithm 1): critics, and now and then the policy.

Pure functions. Each part has gradients for its own parameters only, so one backward pass serves both. Noise
is in half widths of the actions' bounds.

Legend: T transitions, B environments, D elements of an action.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.bootstrap import Rows, bootstrapped, rows_of_steps
from shoal.algorithms.counted import counted
from shoal.algorithms.n_step import n_step
from shoal.algorithms.td3.profile import Td3Config
from shoal.algorithms.twin_critics import critic_loss, held_still
from shoal.policy.network import DeterministicPolicy


def td3_loss(
    policy: DeterministicPolicy,
    target: DeterministicPolicy,
    batch: Batch,
    config: Td3Config,
    with_policy: bool,
) -> LossOutput:
    """`with_policy`: this step is one of the policy too, not only of the critics."""
    rows = rows_of_steps(batch)
    steps = counted(batch)

    def smoothed_value(where: Rows) -> Tensor:
        """min Q'(s, a) with a = clip(pi'(s) + clip(noise)) (equations 10 and 14)."""
        action_TB = smoothed(target, target(*where), config)
        return torch.minimum(*target.q_values(*where, action_TB))

    with torch.no_grad():
        target_TB = bootstrapped(batch, n_step(batch, config.n_step, config.discount), smoothed_value)

    critics = critic_loss(policy.q_values(*rows, batch.action_SB[:-1]), target_TB, batch, steps)
    if not with_policy:
        return LossOutput(critics.loss, critics.metrics, steps.num, critics.priority_B, groups=("critic",))

    # The deterministic policy gradient of the first critic (equation 4).
    action_TB = policy(*rows)
    with held_still(policy.critics):
        q_TB = policy.q_values(*rows, action_TB)[0]
    actor_loss = -steps.mean(q_TB)
    metrics = critics.metrics | {"actor_loss": actor_loss.detach()}
    return LossOutput(critics.loss + actor_loss, metrics, steps.num, critics.priority_B)


def smoothed(policy: DeterministicPolicy, action_TB: Tensor, config: Td3Config) -> Tensor:
    """Actions with clipped noise, within the bounds."""
    unit_TBD = policy.bounds.to_unit(action_TB)
    limit = config.target_noise_clip
    noise_TBD = (torch.randn_like(unit_TBD) * config.target_noise).clamp(-limit, limit)
    return policy.bounds.from_unit((unit_TBD + noise_TBD).clamp(-1.0, 1.0))
