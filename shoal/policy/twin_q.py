"""Twin critics of continuous actions: two networks, each with weights of its own, from observation and action
to a value. The base of the kinds `soft_actor_critic` and `deterministic`. One thread at a time.

Where both see the same numbers, which is so unless a trunk has weights, their layers are stacked: one batched
product computes both.

Legend: S rows of an unroll, B environments, N = S x B, W inputs of a critic, D elements of an action.
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
        hidden = self.hidden(joined_inputs(self.trunk, observation, first_SB, unit_SBD))
        value_SB: Tensor = self.value_head(hidden).squeeze(-1)
        return value_SB


def joined_inputs(trunk: Trunk, observation: dict[str, Tensor], first_SB: Tensor, unit_SBD: Tensor) -> Tensor:
    """[S, B, W]: features of the observation, then the action."""
    state = trunk.initial_state(first_SB.shape[1], first_SB.device)
    features = trunk.unroll(observation, first_SB, state)
    return torch.cat([features, unit_SBD.to(features.dtype)], dim=-1)


class SeparateCritics(nn.ModuleList):
    """Two critics, one after the other."""

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, unit_SBD: Tensor) -> Tensor:
        """[2, S, B]."""
        return torch.stack([critic(observation, first_SB, unit_SBD) for critic in self])


class StackedLinear(nn.Module):
    """Two linear layers on inputs of their own, [2, N, in] to [2, N, out], in one product."""

    def __init__(self, one: nn.Linear, two: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([one.weight.detach(), two.weight.detach()]))
        self.bias = nn.Parameter(torch.stack([one.bias.detach(), two.bias.detach()]))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.baddbmm(self.bias.unsqueeze(1), inputs, self.weight.transpose(1, 2))


class StackedHead(StackedLinear):
    """Last layers: as `shoal.policy.mlp.Head`, in float32 whatever autocast says."""

    def forward(self, inputs: Tensor) -> Tensor:
        device = inputs.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(inputs)
        with torch.autocast(device, enabled=False):
            return super().forward(inputs.to(torch.float32))


class StackedCritics(nn.Module):
    """Two critics layer by layer. Their trunks have no weights: one serves both."""

    def __init__(self, one: Critic, two: Critic) -> None:
        super().__init__()
        self.trunk = one.trunk
        self.hidden = nn.Sequential(*map(_stacked, one.hidden, two.hidden))
        self.value_head = StackedHead(one.value_head, two.value_head)

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, unit_SBD: Tensor) -> Tensor:
        """[2, S, B]."""
        inputs_NW = joined_inputs(self.trunk, observation, first_SB, unit_SBD).flatten(0, 1)
        hidden = self.hidden(inputs_NW.expand(2, -1, -1))
        value_2SB: Tensor = self.value_head(hidden).reshape(2, *first_SB.shape)
        return value_2SB


def _stacked(one: nn.Module, two: nn.Module) -> nn.Module:
    if isinstance(one, nn.Linear) and isinstance(two, nn.Linear):
        return StackedLinear(one, two)
    return one


Critics = SeparateCritics | StackedCritics


def twin_critics(config: PolicySection, observation: tuple[ArraySpec, ...], num_elements: int) -> Critics:
    one, two = (Critic(config, observation, num_elements) for _ in range(2))
    has_weights = next(one.trunk.parameters(), None) is not None
    return SeparateCritics([one, two]) if has_weights else StackedCritics(one, two)


class TwinQPolicy(Policy):
    """A policy over bounded Box actions with two critics."""

    only_for_training = ("critics",)

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        num_elements = num_actions(spec)
        bounds = Bounds(spec, config.kind)
        super().__init__(config, spec)
        self.bounds = bounds
        self.critics = twin_critics(config, self.seen, num_elements)

    def q_values(
        self,
        observation: dict[str, Tensor],
        first_SB: Tensor,
        state: dict[str, Tensor],
        action_SB: Tensor,
        critics: Critics | None = None,
    ) -> Tensor:
        """[2, S, B], a row of each critic, for actions [S, B, *shape]; `state` is the policy's before row 0.

        `critics` are copies of the policy's own, to be asked instead.
        """
        stacks = self._seen(observation, first_SB, state)
        unit_SBD = self.bounds.to_unit(action_SB)
        asked = self.critics if critics is None else critics
        value_2SB: Tensor = asked(stacks, first_SB, unit_SBD)
        return value_2SB
