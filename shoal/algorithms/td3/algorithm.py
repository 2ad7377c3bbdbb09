"""TD3 as the learner sees it: a policy with its critics, and a target of it all. Training thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.step_count import StepCount
from shoal.algorithms.target import target_policy
from shoal.algorithms.td3.loss import td3_loss
from shoal.algorithms.td3.profile import Td3Config
from shoal.policy.network import DeterministicPolicy, Policy


class Td3(Algorithm[DeterministicPolicy]):
    """Policy and targets move at every `policy_delay`-th step of the critics."""

    def __init__(self, config: Td3Config, policy: Policy) -> None:
        assert isinstance(policy, DeterministicPolicy), (
            "the configuration names the kind that the algorithm trains"
        )
        super().__init__(config, policy)
        self._config = config
        self.target = target_policy(policy)
        # Of the critics.
        self.steps = StepCount()

    def group_of(self, parameter: str) -> str:
        return "critic" if parameter.startswith("policy.critics.") else "actor"

    def loss(self, batch: Batch) -> LossOutput:
        return td3_loss(self.policy, self.target.module, batch, self._config, self._is_policys_turn())

    def after_step(self) -> None:
        if self._is_policys_turn():
            self.target.follow(self.policy, self._config.target_rate)
        self.steps.add()

    def _is_policys_turn(self) -> bool:
        """Of the step that is being made: with a delay of 2 the second, the fourth, ..."""
        return (int(self.steps.num) + 1) % self._config.policy_delay == 0
