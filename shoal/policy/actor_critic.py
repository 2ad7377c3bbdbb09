"""Actor-critic: a distribution over actions and a value, from one trunk or two. For IMPALA and PPO.

Discrete actions are categorical, MultiDiscrete ones a categorical for each element, Box ones a diagonal
Gaussian whose deviations are the same in every state, in half widths of the bounds. One thread at a time.

Legend: S rows of an unroll, B environments, F features, P parameters of the distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.action_size import num_actions
from shoal.policy.bounds import ActionUnits
from shoal.policy.distributions import Categorical, DiagonalGaussian, Distribution
from shoal.policy.exploration import Choice, in_rows, refuse_noise
from shoal.policy.masks import allowed_actions
from shoal.policy.mlp import MlpEncoder, head
from shoal.policy.multi_categorical import ElementLayout, MultiCategorical
from shoal.policy.policy import Acted, Best, Policy
from shoal.policy.trunk import Trunk
from shoal.records import (
    ACTION,
    ACTION_MASK,
    LOG_PROB,
    ArraySpec,
    BoxAction,
    EnvSpec,
    MultiDiscreteAction,
)

# A near-uniform first policy explores and keeps the first importance weights near 1.
_POLICY_HEAD_GAIN = 0.01
_VALUE_HEAD_GAIN = 1.0


class PolicyOutput(NamedTuple):
    """Parameters [S, B, P] of the distribution over actions and value [S, B] of each observation."""

    params: Tensor
    value: Tensor


class ActorCritic(Policy):
    """`act` gives the action and its log probability under all of the randomness that drew it."""

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        num_params = num_actions(spec)
        super().__init__(config, spec)
        self.outputs = (spec.action.array_spec(), ArraySpec(LOG_PROB, "float32", ()))
        action = spec.action
        self.elements = ElementLayout(action.nvec) if isinstance(action, MultiDiscreteAction) else None
        self.policy_head = head(self.trunk.num_features, num_params, _POLICY_HEAD_GAIN)
        self.value_trunk = self._build_value_trunk(config)
        self.only_for_training = (
            ("value_head",) if self.value_trunk is None else ("value_head", "value_trunk")
        )
        self.value_head = head((self.value_trunk or self.trunk).num_features, 1, _VALUE_HEAD_GAIN)
        # Of a Box action: one deviation per element, the same in every state.
        self.units: ActionUnits | None = None
        self.log_std: nn.Parameter | None = None
        if isinstance(action, BoxAction):
            self.units = ActionUnits(action, config.scale_actions)
            self.log_std = nn.Parameter(torch.full((num_params,), config.initial_log_std))

    def forward(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> PolicyOutput:
        """Of unrolls [S, B, ...] with the state [B, ...] before their first rows."""
        seen = self._seen(observation, first_SB, state)
        features = self.trunk.unroll(seen, first_SB, state)
        valued = features if self.value_trunk is None else self.value_trunk.unroll(seen, first_SB, {})
        value_SB = self.value_head(valued).squeeze(-1).to(torch.float32)
        return PolicyOutput(self._params(features), value_SB)

    def distribution(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        """Over the actions that the observation's `action_mask` allows, if there is one."""
        if self.units is not None:
            return DiagonalGaussian(params, self.units)
        if self.elements is not None:
            return MultiCategorical(Categorical(self.elements.padded(params), self.elements.allowed(mask)))
        return Categorical(params, None if mask is None else allowed_actions(mask))

    def act(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor], choice: Choice
    ) -> Acted:
        features, state = self._step(observation, first, state)
        chosen = self.distribution(self._params(features), observation.get(ACTION_MASK))
        epsilon = choice.epsilon_unless_greedy()
        if epsilon is not None:
            assert isinstance(chosen, Categorical | MultiCategorical), "refused when the stream opened"
            chosen = chosen.explored(epsilon)
        action = chosen.sample()
        if choice.greedy is not None:
            action = in_rows(choice.greedy, chosen.mode(), action)
        return Acted({ACTION: action, LOG_PROB: chosen.log_prob(action)}, state)

    def best(self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> Best:
        features, state = self._step(observation, first, state)
        params = self._params(features)
        return Best(self.distribution(params, observation.get(ACTION_MASK)).mode(), params, state)

    def check_exploration(self, epsilon: bool, noise: bool) -> None:
        refuse_noise(noise, "actor_critic")
        if epsilon and isinstance(self.spec.action, BoxAction):
            raise UserError(
                "exploration.epsilon of an 'actor_critic' policy is for discrete actions, and those of "
                f"{self.spec.env_id} are {self.spec.action.describe()}: set it to 0"
            )

    def _build_value_trunk(self, config: PolicySection) -> Trunk | None:
        """Of its own, if values are not to share the policy's."""
        is_vector = isinstance(self.trunk.encoder, MlpEncoder) and self.trunk.core is None
        if config.value_trunk == "shared" or (config.value_trunk == "auto" and not is_vector):
            return None
        if self.trunk.core is not None:
            raise UserError(
                "policy.value_trunk is 'separate', and a recurrent policy has one memory for both: set it to "
                "'shared' or 'auto', or policy.recurrent to 'none'"
            )
        return Trunk(config, self.seen, config.hidden_sizes)

    def _params(self, features: Tensor) -> Tensor:
        # In full precision from here on, whatever the network computes in.
        params: Tensor = self.policy_head(features).to(torch.float32)
        if self.log_std is None:
            return params
        return torch.cat([params, self.log_std.expand_as(params)], dim=-1)
