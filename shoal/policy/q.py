"""The policy of DQN and its kin: a value for each discrete action; it takes the best. One thread at a time.

Legend: S rows of an unroll, B environments, F features, A actions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.action_size import num_actions
from shoal.policy.distributions import Categorical
from shoal.policy.exploration import Choice, in_rows, random_rows, refuse_noise
from shoal.policy.masks import allowed_actions, hide
from shoal.policy.mlp import head, hidden_layers
from shoal.policy.policy import Acted, Best, Policy
from shoal.records import ACTION, ACTION_MASK, Q_MAX, Q_VALUE, ArraySpec, DiscreteAction, EnvSpec

_HEAD_GAIN = 1.0
_MAX_STREAM_UNITS = 512


class DuelingHead(nn.Module):
    """Q = V + A - mean A (Wang et al. 2016, equation 9), each stream with a hidden layer of its own."""

    def __init__(self, num_features: int, num: int) -> None:
        super().__init__()
        units = min(num_features, _MAX_STREAM_UNITS)
        hidden = (units,)
        self.value = nn.Sequential(hidden_layers(num_features, hidden, "relu"), head(units, 1, _HEAD_GAIN))
        self.advantage = nn.Sequential(
            hidden_layers(num_features, hidden, "relu"), head(units, num, _HEAD_GAIN)
        )

    def forward(self, features: Tensor) -> Tensor:
        advantage = self.advantage(features)
        values: Tensor = self.value(features) + advantage - advantage.mean(-1, keepdim=True)
        return values


class QPolicy(Policy):
    """`act` gives the action, its value and the best value, from which priorities can be made."""

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        if not isinstance(spec.action, DiscreteAction):
            raise UserError(
                f"policy.kind is 'q', which needs Discrete actions, and {spec.env_id} has "
                f"{spec.action.describe()}: use an algorithm for those "
                "(docs/algorithms), or wrap the action space"
            )
        num = num_actions(spec)
        super().__init__(config, spec)
        self.outputs = (
            spec.action.array_spec(),
            ArraySpec(Q_VALUE, "float32", ()),
            ArraySpec(Q_MAX, "float32", ()),
        )
        num_features = self.trunk.num_features
        self.q_head = (
            DuelingHead(num_features, num) if config.dueling else head(num_features, num, _HEAD_GAIN)
        )

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Values [S, B, A] of all actions, those that a mask forbids too."""
        return self._values(self._unroll(observation, first_SB, state))

    def act(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor], choice: Choice
    ) -> Acted:
        features, state = self._step(observation, first, state)
        mask = observation.get(ACTION_MASK)
        allowed = None if mask is None else allowed_actions(mask)
        values = hide(self._values(features), allowed)
        best, action = values.max(-1)
        epsilon = choice.epsilon_unless_greedy()
        if epsilon is not None:
            uniform = Categorical(torch.zeros_like(values), allowed).sample()
            action = in_rows(random_rows(epsilon), uniform, action)
        taken = values.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return Acted({ACTION: action, Q_VALUE: taken, Q_MAX: best}, state)

    def best(self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> Best:
        features, state = self._step(observation, first, state)
        values = self._values(features)
        mask = observation.get(ACTION_MASK)
        shown = values if mask is None else hide(values, allowed_actions(mask))
        return Best(shown.argmax(-1), values, state)

    def check_exploration(self, epsilon: bool, noise: bool) -> None:
        refuse_noise(noise, "q")

    def _values(self, features: Tensor) -> Tensor:
        values: Tensor = self.q_head(features)
        return values
