"""R2D2 as the learner sees it: its hyperparameters bound to its loss and a policy. Training thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.deep_q import DeepQ
from shoal.algorithms.r2d2.loss import r2d2_loss
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.policy.network import Policy


class R2d2(DeepQ):
    """Keeps a target network."""

    def __init__(self, config: R2d2Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self._config = config

    def loss(self, batch: Batch) -> LossOutput:
        return r2d2_loss(self.policy, self.target.module, batch, self._config)
