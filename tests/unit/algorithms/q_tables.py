"""Q policies whose every value is a parameter of its own, and batches with ends of every kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch
from shoal.policy.network import QPolicy

NUM_STEPS, NUM_ENVS, NUM_ACTIONS = 6, 3, 4
# Env 0 runs on; env 1 terminates at step 1; env 2 is truncated at step 3.
AUTORESET = ((2, 1), (4, 2))


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
    none = torch.zeros(shape, dtype=torch.bool)
    terminated, truncated, first = none.clone(), none.clone(), none.clone()
    terminated[1, 1] = True
    truncated[3, 2] = True
    first[3, 1] = True
    first[5, 2] = True
    return Batch(
        observation={},
        action_SB=torch.randint(0, NUM_ACTIONS, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        terminated_SB=terminated,
        truncated_SB=truncated,
        first_SB=first,
        weight_B=torch.tensor([1.0, 0.25, 0.5]),
    )


def slow_return(batch: Batch, t: int, b: int, n: int, discount: float) -> tuple[float, float, int]:
    """The sum of rewards, what the value of the row it leads to is worth, and that row."""
    total, worth = 0.0, 1.0
    for row in range(t, min(t + n, NUM_STEPS)):
        total += worth * batch.reward_SB[row, b].item()
        worth *= discount
        if batch.terminated_SB[row, b]:
            return total, 0.0, row + 1
        if batch.truncated_SB[row, b]:
            return total, worth, row + 1
    return total, worth, min(t + n, NUM_STEPS)
