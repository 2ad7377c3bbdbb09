"""Ape-X DQN as the learner sees it: its hyperparameters bound to its loss and a policy. Training thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.apex.loss import apex_loss
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.deep_q import DeepQ
from shoal.policy.network import Policy


class Apex(DeepQ):
    """Keeps a target network."""

    def __init__(self, config: ApexConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self._config = config

    def loss(self, batch: Batch) -> LossOutput:
        return apex_loss(self.policy, self.target.module, batch, self._config)
