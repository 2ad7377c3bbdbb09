"""The policy of SAC: a tanh-Gaussian over bounded Box actions, and twin critics. One thread at a time.

Legend: S rows of an unroll, B environments, D elements of an action.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.config.network import PolicySection
from shoal.policy.exploration import Choice, in_rows, random_rows, refuse_noise
from shoal.policy.mlp import head
from shoal.policy.policy import Acted, Best
from shoal.policy.squashed import TanhGaussian, latent_of
from shoal.policy.twin_q import TwinQPolicy
from shoal.records import ACTION, LOG_PROB, ArraySpec, EnvSpec

# The first policy is much the same in every state.
_POLICY_HEAD_GAIN = 0.01
_MIN_LOG_STD, _MAX_LOG_STD = -5.0, 2.0


class SoftActorCritic(TwinQPolicy):
    """`act` gives the action and its log probability under all of the randomness that drew it."""

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.outputs = (spec.action.array_spec(), ArraySpec(LOG_PROB, "float32", ()))
        num_elements = self.bounds.center.numel()
        self.policy_head = head(self.trunk.num_features, 2 * num_elements, _POLICY_HEAD_GAIN)

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Parameters [S, B, 2 D] of the distribution."""
        return self._params(self._unroll(observation, first_SB, state))

    def distribution(self, params: Tensor) -> TanhGaussian:
        return TanhGaussian(params, self.bounds)

    def act(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor], choice: Choice
    ) -> Acted:
        features, state = self._step(observation, first, state)
        chosen = self.distribution(self._params(features))
        latent = chosen.latent_sample()
        if choice.greedy is not None:
            latent = in_rows(choice.greedy, chosen.mean, latent)
        epsilon = choice.epsilon_unless_greedy()
        if epsilon is not None:
            uniform = latent_of(torch.rand_like(latent) * 2.0 - 1.0)
            latent = in_rows(random_rows(epsilon), uniform, latent)
        log_prob = chosen.latent_log_prob(latent)
        if epsilon is not None:
            # Of the mixture: (1 - epsilon) pi(a) + epsilon / volume.
            log_uniform = epsilon.log() - self.bounds.log_volume
            log_prob = torch.logaddexp(log_prob + torch.log1p(-epsilon), log_uniform)
        return Acted({ACTION: chosen.action_of(latent), LOG_PROB: log_prob}, state)

    def best(self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> Best:
        features, state = self._step(observation, first, state)
        params = self._params(features)
        return Best(self.distribution(params).mode(), params, state)

    def check_exploration(self, epsilon: bool, noise: bool) -> None:
        refuse_noise(noise, "soft_actor_critic")

    def _params(self, features: Tensor) -> Tensor:
        mean, spread = self.policy_head(features).chunk(2, dim=-1)
        log_std = _MIN_LOG_STD + 0.5 * (_MAX_LOG_STD - _MIN_LOG_STD) * (spread.tanh() + 1.0)
        return torch.cat([mean, log_std], dim=-1)
