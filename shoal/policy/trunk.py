"""The trunk of a network: an encoder and, if the configuration asks for one, a recurrent core on top.

Heads are put on its features by the kinds of policies. One thread at a time.

Legend: S rows of an unroll, B environments, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.policy.encoders import build_encoder
from shoal.policy.recurrent import RecurrentCore
from shoal.records import ArraySpec


class Trunk(nn.Module):
    """From (stacked) observations to features. `hidden_sizes` are those of its MLP."""

    def __init__(
        self, config: PolicySection, observation: tuple[ArraySpec, ...], hidden_sizes: tuple[int, ...]
    ) -> None:
        super().__init__()
        self._names = tuple(array.name for array in observation)
        self.encoder = build_encoder(config, observation, hidden_sizes)
        self.num_features: int = self.encoder.num_features
        self.core: RecurrentCore | None = None
        self.state: tuple[ArraySpec, ...] = ()
        if config.recurrent != "none":
            self.core = RecurrentCore(config.recurrent, self.num_features, config.recurrent_size)
            self.num_features = self.core.num_features
            self.state = self.core.state

    def encode(self, observation: dict[str, Tensor]) -> Tensor:
        """Features [N, F] of [N, ...], before the core."""
        features: Tensor = self.encoder(observation)
        return features

    def step(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Features [B, F] of [B, ...], and the core's state after them."""
        features = self.encode(observation)
        return (features, {}) if self.core is None else self.core.step(features, first, state)

    def unroll(self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Features [S, B, F] of [S, B, ...], from the core's state before row 0."""
        features = self._encode_rows(observation, first_SB)
        return features if self.core is None else self.core.unroll(features, first_SB, state)

    def state_after(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The core's state after all rows of [S, B, ...], from the one before row 0."""
        if self.core is None:
            return {}
        return self.core.state_after(self._encode_rows(observation, first_SB), first_SB, state)

    def _encode_rows(self, observation: dict[str, Tensor], first_SB: Tensor) -> Tensor:
        features = self.encode({name: observation[name].flatten(0, 1) for name in self._names})
        return features.reshape(*first_SB.shape, -1)

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        return {array.name: torch.zeros((num_envs, *array.shape), device=device) for array in self.state}
