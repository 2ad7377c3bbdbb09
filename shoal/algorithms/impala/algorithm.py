"""IMPALA as the learner sees it: its hyperparameters bound to its loss. Stateless; any thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import Batch, LossOutput
from shoal.algorithms.impala.loss import METRICS, impala_loss
from shoal.config.algorithms import ImpalaConfig
from shoal.policy.network import Policy
from shoal.records import LOG_PROB, ArraySpec


class Impala:
    """Implements `Algorithm`."""

    name = "impala"
    behaviour = (ArraySpec(LOG_PROB, "float32", ()),)
    metrics = METRICS

    def __init__(self, config: ImpalaConfig) -> None:
        self._config = config

    def loss(self, policy: Policy, batch: Batch) -> LossOutput:
        return impala_loss(policy, batch, self._config)
