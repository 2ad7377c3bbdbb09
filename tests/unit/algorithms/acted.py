"""Batches of what a policy did itself, step by step: every ratio to it is 1."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.policy.network import ActorCritic, Choice
from tests.unit.policy.stepping import outputs_of, random_state, step_through


def acted_batch(policy: ActorCritic, seen: dict[str, Tensor], first_SB: Tensor) -> Batch:
    """No episode ends in it; memory, if there is any, is as if the environments had been running."""
    num_envs = first_SB.shape[1]
    state = random_state(policy, num_envs)
    acted = step_through(policy, seen, first_SB, state, Choice())
    none = torch.zeros_like(first_SB)
    return Batch(
        observation=seen,
        action_SB=outputs_of(acted, "action"),
        reward_SB=torch.randn(first_SB.shape),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=first_SB,
        weight_B=torch.ones(num_envs),
        behaviour={"log_prob": outputs_of(acted, "log_prob")},
        state=state,
    )
