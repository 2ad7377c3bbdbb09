"""An encoder of one's own that takes integers as such."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.records import ArraySpec


class CountsEncoder(nn.Module):
    num_features = 7

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        vector, counts = observation["observation"], observation["observation.counts"]
        assert counts.dtype == torch.int32
        return torch.cat([vector, counts.to(torch.float32)], dim=-1)


def make(observation: tuple[ArraySpec, ...]) -> nn.Module:
    return CountsEncoder()
