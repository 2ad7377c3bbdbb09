"""What is done to rewards before anything is computed from them. Training thread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch
from shoal.algorithms.returns import ReturnScale
from shoal.algorithms.settings import AlgorithmSection


class RewardConditioner(nn.Module):
    """Symlog, clip, divide by the size of returns, scale, in this order. Of n steps it is their sum."""

    def __init__(self, config: AlgorithmSection) -> None:
        super().__init__()
        self._symlog = config.reward_symlog
        self._clip = config.reward_clip
        self._scale = config.reward_scale
        self.returns = ReturnScale(config.discount) if config.normalise_returns else None

    def forward(self, reward: Tensor) -> Tensor:
        reward = self._bounded(reward)
        if self.returns is not None:
            reward = self.returns(reward)
        return reward if self._scale == 1.0 else reward * self._scale

    def moments(self, batch: Batch) -> Tensor | None:
        """What `observe` takes, to be added up over learners first; None if nothing is observed."""
        if self.returns is None:
            return None
        return self.returns.moments(batch, self._bounded(batch.reward_SB))

    def observe(self, moments: Tensor) -> None:
        assert self.returns is not None
        self.returns.observe(moments)

    def _bounded(self, reward: Tensor) -> Tensor:
        if self._symlog:
            reward = torch.sign(reward) * torch.log1p(reward.abs())
        if self._clip is not None:
            reward = reward.clamp(-self._clip, self._clip)
        return reward
