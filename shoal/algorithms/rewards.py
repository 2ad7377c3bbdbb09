"""What is done to rewards before anything is computed from them. Training thread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.config.algorithms import AlgorithmSection


class RewardConditioner(nn.Module):
    """Symlog, clip, scale, in this order."""

    def __init__(self, config: AlgorithmSection) -> None:
        super().__init__()
        self._symlog = config.reward_symlog
        self._clip = config.reward_clip
        self._scale = config.reward_scale

    def forward(self, reward: Tensor) -> Tensor:
        if self._symlog:
            reward = torch.sign(reward) * torch.log1p(reward.abs())
        if self._clip is not None:
            reward = reward.clamp(-self._clip, self._clip)
        return reward if self._scale == 1.0 else reward * self._scale
