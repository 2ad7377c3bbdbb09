"""A policy whose logits and values are parameters of their own for every row and environment, and a batch.

Gradients are then per step. Observations name row and environment, so that parts of a batch work.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch
from shoal.policy.distributions import Categorical
from shoal.policy.masks import allowed_actions
from shoal.policy.network import ActorCritic, PolicyOutput
from shoal.records import ArraySpec
from tests.unit.algorithms.ends import episode_ends

NUM_STEPS, NUM_ENVS, NUM_ACTIONS = 5, 4, 3


class TablePolicy(ActorCritic):
    """`has_state`: it says that it remembers something, so that unrolls must stay whole."""

    def __init__(self, has_state: bool = False) -> None:
        nn.Module.__init__(self)
        self.state = (ArraySpec("memory", "float32", ()),) if has_state else ()
        generator = torch.Generator().manual_seed(1)
        rows = NUM_STEPS + 1
        self.logits = nn.Parameter(torch.randn(rows, NUM_ENVS, NUM_ACTIONS, generator=generator))
        self.value = nn.Parameter(torch.randn(rows, NUM_ENVS, generator=generator))

    def forward(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> PolicyOutput:
        place = observation["row"], observation["env"]
        return PolicyOutput(self.logits[place], self.value[place])

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
        observation={
            "row": torch.arange(NUM_STEPS + 1).unsqueeze(1).expand(shape),
            "env": torch.arange(NUM_ENVS).expand(shape),
        },
        action_SB=torch.randint(0, NUM_ACTIONS, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        **episode_ends(NUM_STEPS, NUM_ENVS)._asdict(),
        weight_B=torch.ones(NUM_ENVS),
        behaviour={"log_prob": -torch.rand(shape, generator=generator) * 2},
        state={"memory": torch.arange(NUM_ENVS).float()},
    )


def places_of(part: Batch) -> tuple[Tensor, Tensor]:
    """Where the steps of a part come from: their rows and environments, shaped as its targets."""
    return part.at_steps(part.observation["row"]), part.at_steps(part.observation["env"])
