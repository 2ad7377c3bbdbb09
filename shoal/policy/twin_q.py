"""Twin critics of continuous actions: two networks, each with a trunk of its own, from observation and action
to a value. The base of the kinds `soft_actor_critic` and `deterministic`. One thread at a time.

Legend: S rows of an unroll, B environments, F features, D elements of an action.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.policy.action_size import num_actions
from shoal.policy.bounds import Bounds
from shoal.policy.mlp import head, hidden_layers
from shoal.policy.policy import Policy
from shoal.policy.trunk import Trunk
from shoal.records import ArraySpec, EnvSpec

_VALUE_HEAD_GAIN = 1.0


class Critic(nn.Module):
    """Q(s, a): the action joins what the encoder makes of the observation before the hidden layers.

    A recurrent core starts at zeros with row 0: only the actor's state is stored.
    """

    def __init__(self, config: PolicySection, observation: tuple[ArraySpec, ...], num_elements: int) -> None:
        super().__init__()
        # Without hidden layers in its MLP: they come after the action has joined.
        self.trunk = Trunk(config, observation, hidden_sizes=())
        width = self.trunk.num_features + num_elements
        self.hidden = hidden_layers(width, config.hidden_sizes, config.activation)
        self.value_head = head(config.hidden_sizes[-1] if config.hidden_sizes else width, 1, _VALUE_HEAD_GAIN)

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, unit_SBD: Tensor) -> Tensor:
        state = self.trunk.initial_state(first_SB.shape[1], first_SB.device)
        features = self.trunk.unroll(observation, first_SB, state)
        hidden = self.hidden(torch.cat([features, unit_SBD.to(features.dtype)], dim=-1))
        value_SB: Tensor = self.value_head(hidden).squeeze(-1)
        return value_SB


class TwinQPolicy(Policy):
    """A policy over bounded Box actions with two critics."""

    only_for_training = ("critics",)

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        num_elements = num_actions(spec)
        bounds = Bounds(spec, config.kind)
        super().__init__(config, spec)
        self.bounds = bounds
        self.critics = nn.ModuleList(Critic(config, self.seen, num_elements) for _ in range(2))

    def q_values(
        self,
        observation: dict[str, Tensor],
        first_SB: Tensor,
        state: dict[str, Tensor],
        action_SB: Tensor,
        critics: nn.ModuleList | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[S, B] of each critic, for actions [S, B, *shape]; `state` is the policy's before row 0.

        `critics` are copies of the policy's own, to be asked instead.
        """
        stacks = self._seen(observation, first_SB, state)
        unit_SBD = self.bounds.to_unit(action_SB)
        asked = self.critics if critics is None else critics
        one, two = (critic(stacks, first_SB, unit_SBD) for critic in asked)
        return one, two
