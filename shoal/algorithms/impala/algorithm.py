"""IMPALA as the learner sees it: its hyperparameters bound to its loss. Stateless; any thread."""

from __future__ import annotations

from shoal.algorithms.algorithm import Batch, LossOutput
from shoal.algorithms.impala.loss import impala_loss
from shoal.config.algorithms import ImpalaConfig
from shoal.policy.network import ActorCritic, Policy
from shoal.records import LOG_PROB, ArraySpec


class Impala:
    """Implements `Algorithm`."""

    behaviour = (ArraySpec(LOG_PROB, "float32", ()),)

    def __init__(self, config: ImpalaConfig) -> None:
        self._config = config

    def loss(self, policy: Policy, batch: Batch) -> LossOutput:
        assert isinstance(policy, ActorCritic), "the configuration names the kind that the algorithm trains"
        return impala_loss(policy, batch, self._config)
