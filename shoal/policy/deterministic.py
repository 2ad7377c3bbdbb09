"""The policy of TD3: one action for each observation, within bounds, and twin critics. One thread at a time.

Legend: S rows of an unroll, B environments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.config.network import PolicySection
from shoal.policy.exploration import Choice, in_rows, random_rows
from shoal.policy.mlp import head
from shoal.policy.policy import Acted, Best
from shoal.policy.twin_q import TwinQPolicy
from shoal.records import ACTION, EnvSpec

# The first actions are near the middle of the bounds, where tanh has a gradient.
_POLICY_HEAD_GAIN = 0.01


class DeterministicPolicy(TwinQPolicy):
    """Explores by Gaussian noise, clipped to the bounds, or by uniformly random actions."""

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.outputs = (spec.action.array_spec(),)
        self.policy_head = head(self.trunk.num_features, self.bounds.center.numel(), _POLICY_HEAD_GAIN)

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Actions [S, B, *shape]."""
        return self.bounds.from_unit(self._unit(self._unroll(observation, first_SB, state)))

    def act(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor], choice: Choice
    ) -> Acted:
        features, state = self._step(observation, first, state)
        unit = self._unit(features)
        noise, epsilon = choice.noise_unless_greedy(), choice.epsilon_unless_greedy()
        if noise is not None:
            unit = torch.addcmul(unit, noise.unsqueeze(-1), torch.randn_like(unit)).clamp(-1.0, 1.0)
        if epsilon is not None:
            unit = in_rows(random_rows(epsilon), torch.rand_like(unit) * 2.0 - 1.0, unit)
        return Acted({ACTION: self.bounds.from_unit(unit)}, state)

    def best(self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> Best:
        features, state = self._step(observation, first, state)
        unit = self._unit(features)
        return Best(self.bounds.from_unit(unit), unit, state)

    def check_exploration(self, epsilon: bool, noise: bool) -> None:
        """Both make sense."""

    def _unit(self, features: Tensor) -> Tensor:
        unit: Tensor = self.policy_head(features).tanh()
        return unit
