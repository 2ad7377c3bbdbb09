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

NUM_STEPS, NUM_ENVS, NUM_ACTIONS = 5, 4, 3
# Steps without a transition in `make_batch`.
AUTORESET = ((2, 1), (3, 2))


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
    """Envs 0 and 3 run on; env 1 terminates at step 1; env 2 is truncated at step 2."""
    generator = torch.Generator().manual_seed(2)
    shape = (NUM_STEPS + 1, NUM_ENVS)
    none = torch.zeros(shape, dtype=torch.bool)
    terminated, truncated, first = none.clone(), none.clone(), none.clone()
    terminated[1, 1] = True
    truncated[2, 2] = True
    first[3, 1] = True
    first[4, 2] = True
    return Batch(
        observation={"env": torch.arange(NUM_ENVS).expand(shape)},
        action_SB=torch.randint(0, NUM_ACTIONS, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        terminated_SB=terminated,
        truncated_SB=truncated,
        first_SB=first,
        weight_B=torch.ones(NUM_ENVS),
        behaviour={"log_prob": -torch.rand(shape, generator=generator) * 2},
    )
