"""A policy whose logits and values are parameters of their own for every row and environment, and a batch.

Gradients are then per step. Rows find their environment by an observation, so that parts of a batch work.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch
from shoal.policy.distributions import Categorical
from shoal.policy.masks import allowed_actions
from shoal.policy.network import ActorCritic, PolicyOutput
from tests.unit.algorithms.ends import episode_ends

NUM_STEPS, NUM_ENVS, NUM_ACTIONS = 5, 4, 3


class TablePolicy(ActorCritic):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        generator = torch.Generator().manual_seed(1)
        rows = NUM_STEPS + 1
        self.logits = nn.Parameter(torch.randn(rows, NUM_ENVS, NUM_ACTIONS, generator=generator))
        self.value = nn.Parameter(torch.randn(rows, NUM_ENVS, generator=generator))

    def forward(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> PolicyOutput:
        env = observation["env"][0]
        return PolicyOutput(self.logits[:, env], self.value[:, env])

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(params, None if mask is None else allowed_actions(mask))

    def log_probs(self, action_SB: Tensor) -> Tensor:
        """[S, B], of all environments; detached."""
        log_probs = torch.log_softmax(self.logits.detach(), dim=-1)
        return log_probs.gather(-1, action_SB.unsqueeze(-1)).squeeze(-1)


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(2)
    shape = (NUM_STEPS + 1, NUM_ENVS)
    return Batch(
        observation={"env": torch.arange(NUM_ENVS).expand(shape)},
        action_SB=torch.randint(0, NUM_ACTIONS, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        **episode_ends(NUM_STEPS, NUM_ENVS)._asdict(),
        weight_B=torch.ones(NUM_ENVS),
        behaviour={"log_prob": -torch.rand(shape, generator=generator) * 2},
    )
