"""What every policy offers, whatever its kind: acting, and what it remembers of each environment.

Inference uses `Policy` and nothing below it; algorithms use the kinds (`ActorCritic`, `QPolicy`, ...), which
add what their losses need. A policy is used by one thread at a time.

Legend: S rows of an unroll, B environments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.policy.encoders import normalised_arrays
from shoal.policy.exploration import Choice
from shoal.policy.frames import FrameStack
from shoal.policy.masks import check_mask
from shoal.policy.normaliser import ObservationNormaliser
from shoal.policy.trunk import Trunk
from shoal.records import ACTION_MASK, PREVIOUS, ArraySpec, EnvSpec


class Acted(NamedTuple):
    """What `outputs` and `state` of the policy announce, [B, ...] each: memory of its own, no input's."""

    outputs: dict[str, Tensor]
    state: dict[str, Tensor]


class Best(NamedTuple):
    """The greedy action [B, *shape], what it was chosen from [B, P], and the state after it.

    `params` are as the network gives them, whatever a mask forbids: parameters of the distribution, values of
    all actions, or the action as a `deterministic` policy has it, in [-1, 1].
    """

    action: Tensor
    params: Tensor
    state: dict[str, Tensor]


class Policy(nn.Module, ABC):
    """A network that turns observations into actions. Its subclasses add heads to the trunk."""

    # What `outputs` starts with is the action.
    outputs: tuple[ArraySpec, ...]
    # Modules that only losses use: acting does without.
    only_for_training: tuple[str, ...] = ()

    def __init__(self, config: PolicySection, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = spec
        check_mask(spec)
        seen = tuple(array for array in spec.observation if array.name != ACTION_MASK)
        self.seen = seen
        own = tuple(array for array in seen if not array.name.startswith(PREVIOUS))
        self.frames = FrameStack(own, config.frame_stack)
        self.trunk = Trunk(config, seen, config.hidden_sizes)
        normalised = normalised_arrays(config, own)
        self.normaliser = ObservationNormaliser(normalised) if normalised else None
        self.state: tuple[ArraySpec, ...] = (*self.trunk.state, *self.frames.state)

    def acts_with(self, name: str) -> bool:
        """Whether acting needs a weight: others are neither published nor exported."""
        return name.partition(".")[0] not in self.only_for_training

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """[num_envs, ...] each, of environments that have shown nothing yet."""
        return {
            array.name: torch.zeros(
                (num_envs, *array.shape), dtype=getattr(torch, array.dtype), device=device
            )
            for array in self.state
        }

    @abstractmethod
    def act(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor], choice: Choice
    ) -> Acted:
        """One step of [B, ...]; rows with `first` forget what was before."""

    @abstractmethod
    def best(self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> Best:
        """One step as of greedy rows, with no randomness in it: what is exported."""

    @torch.no_grad()
    def state_after(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """What is remembered after all rows [S, B, ...] of an unroll; `state` is the one before row 0."""
        seen = self.frames.unroll(observation, first_SB, state)
        memory = self.trunk.state_after(self._normalised(seen), first_SB, state)
        return {**memory, **self.frames.state_after(seen)}

    @abstractmethod
    def check_exploration(self, epsilon: bool, noise: bool) -> None:
        """Raises UserError for a kind of exploration that this policy cannot add."""

    def _step(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Features [B, F] and the state after this step."""
        if not self.state:
            return self.trunk.encode(self._normalised(observation)), {}
        seen, frames = self.frames.step(observation, first, state)
        features, memory = self.trunk.step(self._normalised(seen), first, state)
        return features, {**memory, **frames}

    def _unroll(self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Features [S, B, F], as `_step` gives them row by row; `state` is the one before row 0."""
        return self.trunk.unroll(self._seen(observation, first_SB, state), first_SB, state)

    def _seen(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """What trunks see of unrolls [S, B, ...]: stacked, normalised."""
        return self._normalised(self.frames.unroll(observation, first_SB, state))

    def _normalised(self, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        return observation if self.normaliser is None else self.normaliser(observation)
