"""The trunk of a network: an encoder and, if the configuration asks for one, a recurrent core on top.

Heads are put on its features by the kinds of policies. One thread at a time.

Legend: S rows of an unroll, B environments, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.policy.encoders import build_encoder
from shoal.policy.mlp import MlpEncoder
from shoal.policy.recurrent import RecurrentCore
from shoal.records import PREVIOUS, ArraySpec


class Trunk(nn.Module):
    """From (stacked) observations to features. `hidden_sizes` are those of its MLP."""

    def __init__(
        self, config: PolicySection, observation: tuple[ArraySpec, ...], hidden_sizes: tuple[int, ...]
    ) -> None:
        super().__init__()
        own = tuple(array for array in observation if not array.name.startswith(PREVIOUS))
        self._names = tuple(array.name for array in own)
        self.encoder = build_encoder(config, own, hidden_sizes)
        self.num_features: int = self.encoder.num_features
        self.core: RecurrentCore | None = None
        # What was done and what came of it, beside the features, where the environments show it.
        self.previous: MlpEncoder | None = None
        self.state: tuple[ArraySpec, ...] = ()
        if config.recurrent != "none":
            previous = tuple(array for array in observation if array.name.startswith(PREVIOUS))
            width = self.num_features
            if previous:
                self.previous = MlpEncoder(previous, (), config.activation)
                width += self.previous.num_features
            self.core = RecurrentCore(config.recurrent, width, config.recurrent_size)
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
        features = self._core_inputs(observation)
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
        names = self._names if self.previous is None else (*self._names, *self.previous.names)
        features = self._core_inputs({name: observation[name].flatten(0, 1) for name in names})
        return features.reshape(*first_SB.shape, -1)

    def _core_inputs(self, observation: dict[str, Tensor]) -> Tensor:
        features = self.encode(observation)
        if self.previous is None:
            return features
        return torch.cat([features, self.previous(observation).to(features.dtype)], dim=-1)

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        return {array.name: torch.zeros((num_envs, *array.shape), device=device) for array in self.state}
