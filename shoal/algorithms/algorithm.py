"""The shape that all algorithms share.

An algorithm says which policy outputs it needs in the trajectories and turns a batch into a loss; the
learner owns everything around that: data, gradients, the optimiser, publishing. Called by the
learner's training thread.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from shoal.config.algorithms import ImpalaConfig
from shoal.policy.network import Policy
from shoal.records import ArraySpec


@dataclass(frozen=True)
class Batch:
    """Trajectories side by side, [S, B, ...] each but the state. `trajectory.proto` says what rows mean."""

    observation: dict[str, Tensor]
    action_SB: Tensor
    reward_SB: Tensor
    terminated_SB: Tensor
    truncated_SB: Tensor
    first_SB: Tensor
    # Outputs of the policy that acted, as the algorithm's `behaviour` names them.
    behaviour: dict[str, Tensor]
    # What the policy remembered before row 0, [B, ...] each, by the names of `Policy.state`.
    state: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LossOutput:
    """What to minimise, and detached scalars for the curves: tensors, so that nobody waits for a GPU."""

    loss: Tensor
    metrics: dict[str, Tensor]


class Algorithm(Protocol):
    """A loss with its hyperparameters. Holds no state."""

    @property
    def behaviour(self) -> tuple[ArraySpec, ...]:
        """Policy outputs, besides the action, that trajectories must carry."""
        ...

    def loss(self, policy: Policy, batch: Batch) -> LossOutput: ...


def build_algorithm(config: ImpalaConfig) -> Algorithm:
    """The algorithm that the configuration names; the folder of the same name holds it."""
    from shoal.algorithms.impala.algorithm import Impala

    return Impala(config)
