"""PPO as the learner sees it: hyperparameters bound to its targets, loss and a policy. Training thread."""

from __future__ import annotations

from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.algorithms.clipped import ClippedAlgorithm
from shoal.algorithms.ppo.loss import ppo_targets
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.policy.network import Policy


class Ppo(ClippedAlgorithm):
    """Keeps nothing besides the policy."""

    def __init__(self, config: PpoConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self._config = config

    def targets(self, batch: Batch) -> dict[str, Tensor]:
        return ppo_targets(self.policy, batch, self._config)

    @property
    def recomputes_targets(self) -> bool:
        return self._config.recompute_advantages

    @property
    def value_clip(self) -> float | None:
        return self._config.value_clip
