"""Asynchronous PPO as the learner sees it: its hyperparameters bound to its targets, its loss and a policy.

Training thread.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.appo.loss import appo_targets
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.clipped import RHO, ClippedAlgorithm
from shoal.policy.network import Policy


class Appo(ClippedAlgorithm):
    """Keeps nothing besides the policy."""

    def __init__(self, config: AppoConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self._config = config

    def targets(self, batch: Batch) -> dict[str, Tensor]:
        return appo_targets(self.policy, batch, self._config)

    def loss(self, batch: Batch) -> LossOutput:
        output = super().loss(batch)
        with torch.no_grad():
            weight_TB = batch.valid_TB * batch.weight_B
            mean_rho = (batch.targets[RHO] * weight_TB).sum() / output.weight.clamp(min=1e-8)
        return replace(output, metrics=output.metrics | {"mean_rho": mean_rho})
