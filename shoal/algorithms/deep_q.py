"""What Ape-X and R2D2 keep alike: a network of Q values, and its target. Training thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import Algorithm
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.step_count import StepCount
from shoal.algorithms.target import target_policy
from shoal.policy.network import Policy, QPolicy


class DeepQ(Algorithm[QPolicy]):
    """The target network is a copy that is renewed every `target_every` steps."""

    def __init__(self, config: ApexConfig | R2d2Config, policy: Policy) -> None:
        assert isinstance(policy, QPolicy), "the configuration names the kind that the algorithm trains"
        super().__init__(config, policy)
        self.target = target_policy(policy)
        self.num_steps = StepCount()
        self._target_every = config.target_every

    def after_step(self) -> None:
        if self.num_steps.add() % self._target_every == 0:
            self.target.copy_from(self.policy)
