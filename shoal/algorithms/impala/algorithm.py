"""IMPALA as the learner sees it: its hyperparameters bound to its loss and a policy. Training thread."""

from __future__ import annotations

from torch import Tensor

from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.loss import impala_loss
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.step_factor import step_factor
from shoal.policy.network import ActorCritic, Policy
from shoal.records import LOG_PROB, ArraySpec


class Impala(Algorithm[ActorCritic]):
    """Keeps nothing besides the policy."""

    behaviour = (ArraySpec(LOG_PROB, "float32", ()),)

    def __init__(self, config: ImpalaConfig, policy: Policy) -> None:
        assert isinstance(policy, ActorCritic), "the configuration names the kind that the algorithm trains"
        super().__init__(config, policy)
        self._config = config

    def loss(self, batch: Batch) -> LossOutput:
        return impala_loss(self.policy, batch, self._config)

    def step_factor(self, metrics: dict[str, Tensor]) -> float:
        noise = self._config.advantage_noise
        return step_factor(metrics["advantage_deviation"].item(), noise) if noise else 1.0
