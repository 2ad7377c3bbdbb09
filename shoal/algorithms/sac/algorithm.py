"""SAC as the learner sees it: a policy, targets of its critics, and a temperature. Training thread."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.sac.loss import sac_loss
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.target import Target
from shoal.policy.network import Policy, SoftActorCritic

_TEMPERATURE = "log_temperature"


class Sac(Algorithm[SoftActorCritic]):
    """Actor, critics and temperature have optimisers of their own."""

    log_temperature: Tensor

    def __init__(self, config: SacConfig, policy: Policy) -> None:
        assert isinstance(policy, SoftActorCritic), (
            "the configuration names the kind that the algorithm trains"
        )
        super().__init__(config, policy)
        self._config = config
        self.target_critics = Target(policy.critics)
        start = torch.tensor(math.log(config.initial_temperature))
        if config.learn_temperature:
            self.register_parameter(_TEMPERATURE, nn.Parameter(start))
        else:
            self.register_buffer(_TEMPERATURE, start)

    def group_of(self, parameter: str) -> str:
        if parameter == _TEMPERATURE:
            return "temperature"
        return "critic" if parameter.startswith("policy.critics.") else "actor"

    def learning_rate(self, group: str) -> float:
        config = self._config
        return config.temperature_learning_rate if group == "temperature" else config.learning_rate

    def decays(self, group: str) -> bool:
        return group != "temperature"

    def loss(self, batch: Batch) -> LossOutput:
        return sac_loss(self.policy, self.target_critics.module, self.log_temperature, batch, self._config)

    def after_step(self) -> None:
        self.target_critics.follow(self.policy.critics, self._config.target_rate)
