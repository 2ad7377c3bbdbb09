"""The policy network: built from the configuration and the environment's spec.

The learner builds it to train, inference builds it to act, both from the same two inputs, so that
their weights have the same names and shapes. A `Policy` is used by one thread at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.config.tree import PolicySection
from shoal.errors import UserError
from shoal.policy.distributions import Categorical, DiagonalGaussian, Distribution
from shoal.policy.encoders import MlpEncoder, linear
from shoal.records import ACTION, LOG_PROB, ArraySpec, BoxAction, EnvSpec

MAX_ACTIONS = 1 << 16

# A near-uniform first policy explores and keeps the first importance weights near 1.
_POLICY_HEAD_GAIN = 0.01
_VALUE_HEAD_GAIN = 1.0


class PolicyOutput(NamedTuple):
    """Parameters [..., P] of the distribution over actions and value [...] of each observation."""

    params: Tensor
    value: Tensor


class Policy(nn.Module):
    """Encoder, policy head and value head. Leading dimensions are free: [B] or [T+1, B]."""

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        self.outputs: tuple[ArraySpec, ...] = (
            spec.action.array_spec(),
            ArraySpec(LOG_PROB, "float32", ()),
        )
        num_params = _num_params(spec)
        self.encoder = MlpEncoder(config, spec.observation)
        self.policy_head = linear(self.encoder.num_features, num_params, _POLICY_HEAD_GAIN)
        self.value_head = linear(self.encoder.num_features, 1, _VALUE_HEAD_GAIN)
        # Of a Box action: one deviation per element, the same in every state.
        self.log_std = nn.Parameter(torch.zeros(num_params)) if isinstance(spec.action, BoxAction) else None

    def forward(self, observation: dict[str, Tensor]) -> PolicyOutput:
        features = self.encoder(observation)
        return PolicyOutput(self._params(features), self.value_head(features).squeeze(-1))

    def distribution(self, params: Tensor) -> Distribution:
        action = self.spec.action
        return (
            DiagonalGaussian(params, action.shape) if isinstance(action, BoxAction) else Categorical(params)
        )

    def act(self, observation: dict[str, Tensor], greedy: Tensor | None = None) -> dict[str, Tensor]:
        """What `outputs` announces, [B, ...] each. Rows where `greedy` is set get the most likely action."""
        chosen = self.distribution(self._params(self.encoder(observation)))
        action = chosen.sample()
        if greedy is not None:
            rows = greedy.reshape(-1, *(1,) * (action.ndim - 1))
            action = torch.where(rows, chosen.mode(), action)
        return {ACTION: action, LOG_PROB: chosen.log_prob(action)}

    def _params(self, features: Tensor) -> Tensor:
        params: Tensor = self.policy_head(features)
        if self.log_std is None:
            return params
        return torch.cat([params, self.log_std.expand_as(params)], dim=-1)


def build_policy(config: PolicySection, spec: EnvSpec) -> Policy:
    """A policy with fresh weights from torch's global generator. UserError for a space it cannot handle."""
    return Policy(config, spec)


def _num_params(spec: EnvSpec) -> int:
    """Outputs of the policy head."""
    action = spec.action
    num = len(action.low) if isinstance(action, BoxAction) else action.n
    if not 1 <= num <= MAX_ACTIONS:
        what = "elements of the action" if isinstance(action, BoxAction) else "actions"
        raise UserError(f"{spec.env_id} has {num} {what} (limits 1 and {MAX_ACTIONS}): wrap the action space")
    return num
