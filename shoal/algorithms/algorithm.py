"""The shape that all algorithms share.

An algorithm turns a batch into a loss and keeps what it learns besides the policy: target networks, a
temperature, statistics of rewards. The learner owns everything around that: data, gradients, the optimiser,
publishing. One folder each, with the same files: `algorithm.py` binds hyperparameters to the policy,
`loss.py` has the loss as a pure function in the order of the paper. Called by the learner's training thread.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.profiles import AnyAlgorithm
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.rewards import RewardConditioner
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.settings import AlgorithmSection
from shoal.algorithms.td3.profile import Td3Config
from shoal.policy.network import Policy
from shoal.records import ArraySpec


@dataclass(frozen=True)
class LossOutput:
    """What to minimise, and detached tensors about it, so that nobody waits for a GPU."""

    loss: Tensor
    # Scalars for the curves.
    metrics: dict[str, Tensor]
    # What the means of the loss were divided by, and 0 if nothing counts. Parts of a batch, in time or on
    # other learners, are put together in proportion to it, so that the sum is the loss of the whole.
    weight: Tensor
    # New priorities of the items, before alpha; [B].
    priority_B: Tensor | None = None
    # Groups of parameters that are to make a step; None: all.
    groups: tuple[str, ...] | None = None


PolicyT = TypeVar("PolicyT", bound=Policy)


class Algorithm(nn.Module, ABC, Generic[PolicyT]):
    """An algorithm at work on a policy.

    A module, so that its `state_dict` is all there is to save: the policy, under `policy.`, and its own.
    Parameters get gradients, everything else is a buffer or belongs to a module that needs none.
    """

    # Policy outputs, besides the action, that trajectories must carry.
    behaviour: tuple[ArraySpec, ...] = ()
    policy: PolicyT

    def __init__(self, config: AlgorithmSection, policy: PolicyT) -> None:
        super().__init__()
        self.policy = policy
        self.rewards = RewardConditioner(config)
        self.section: AlgorithmSection = config
        # For what is of the whole batch and not of one learner's part of it: statistics, when to end the
        # passes. All learners call it in the same order; in place.
        self.sum_over_learners: Callable[[Tensor], Tensor] = lambda sums: sums

    def group_of(self, parameter: str) -> str:
        """The group of a parameter, by its name here. Each has its own gradient norm and steps."""
        return "policy"

    def learning_rate(self, group: str) -> float:
        """Of a group, before schedule and scaling."""
        return self.section.learning_rate

    def decays(self, group: str) -> bool:
        """Whether `weight_decay` is for a group: what is learned besides networks has no reason to shrink."""
        return True

    def conditioned(self, batch: Batch) -> Batch:
        """A new batch with its rewards as losses see them."""
        return replace(batch, reward_SB=self.rewards(batch.reward_SB))

    def passes(self, batch: Batch) -> Iterator[Batch]:
        """What is trained on, an optimiser step each; the next one is asked for after the step."""
        yield batch

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput: ...

    def step_factor(self, metrics: dict[str, Tensor]) -> float:
        """On the learning rate of one step, besides schedule and scaling; `metrics` are of all learners."""
        return 1.0

    def after_step(self) -> None:
        """After each optimiser step: targets follow. No gradients are recorded here."""


def build_algorithm(config: AnyAlgorithm, policy: Policy) -> Algorithm[Any]:
    """The algorithm that the configuration names, for a policy of a kind that it trains."""
    match config:
        case ImpalaConfig():
            from shoal.algorithms.impala.algorithm import Impala

            return Impala(config, policy)
        case PpoConfig():
            from shoal.algorithms.ppo.algorithm import Ppo

            return Ppo(config, policy)
        case AppoConfig():
            from shoal.algorithms.appo.algorithm import Appo

            return Appo(config, policy)
        case ApexConfig():
            from shoal.algorithms.apex.algorithm import Apex

            return Apex(config, policy)
        case R2d2Config():
            from shoal.algorithms.r2d2.algorithm import R2d2

            return R2d2(config, policy)
        case SacConfig():
            from shoal.algorithms.sac.algorithm import Sac

            return Sac(config, policy)
        case Td3Config():
            from shoal.algorithms.td3.algorithm import Td3

            return Td3(config, policy)
