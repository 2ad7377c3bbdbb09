"""Q policies whose every value is a parameter of its own, and batches with ends of every kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch
from shoal.policy.network import QPolicy
from tests.unit.algorithms.ends import episode_ends

NUM_STEPS, NUM_ENVS, NUM_ACTIONS = 6, 3, 4


class TableQ(QPolicy):
    """Gradients are per row, environment and action."""

    def __init__(self, seed: int) -> None:
        nn.Module.__init__(self)
        generator = torch.Generator().manual_seed(seed)
        self.q = nn.Parameter(3 * torch.randn(NUM_STEPS + 1, NUM_ENVS, NUM_ACTIONS, generator=generator))

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        return self.q


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(2)
    shape = (NUM_STEPS + 1, NUM_ENVS)
    return Batch(
        observation={},
        action_SB=torch.randint(0, NUM_ACTIONS, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        **episode_ends(NUM_STEPS, NUM_ENVS)._asdict(),
        weight_B=torch.tensor([1.0, 0.25, 0.5]),
    )
