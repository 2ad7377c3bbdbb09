"""R2D2 as the learner sees it: a recurrent network of Q values and its target. Training thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.r2d2.loss import r2d2_loss
from shoal.algorithms.step_count import StepCount
from shoal.algorithms.target import Target
from shoal.config.algorithms import R2d2Config
from shoal.policy.network import Policy, QPolicy


class R2d2(Algorithm[QPolicy]):
    """Keeps a target network, a copy that is renewed every so many steps."""

    def __init__(self, config: R2d2Config, policy: Policy) -> None:
        assert isinstance(policy, QPolicy), "the configuration names the kind that the algorithm trains"
        super().__init__(config, policy)
        self._config = config
        self.target = Target(policy)
        self.num_steps = StepCount()

    def loss(self, batch: Batch) -> LossOutput:
        return r2d2_loss(self.policy, self.target.module, batch, self._config)

    def after_step(self) -> None:
        if self.num_steps.add() % self._config.target_every == 0:
            self.target.copy_from(self.policy)
