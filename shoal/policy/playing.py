"""A trained policy at play outside of the services: `shoal eval` asks it for actions, step by step.

Remembers for each slot what the policy does. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from shoal.config.network import PolicySection
from shoal.envs.batch import EnvStep
from shoal.policy.network import Choice, Policy, build_policy
from shoal.policy.weights import load_policy_arrays
from shoal.records import ACTION, EnvSpec


def trained_policy(config: PolicySection, spec: EnvSpec, weights: Mapping[str, np.ndarray]) -> Policy:
    """On the CPU. Raises UserError for weights of another policy."""
    policy = build_policy(config, spec).eval()
    load_policy_arrays(policy, weights)
    return policy


class PolicyPlayer:
    """Plays so many slots: the most likely actions if `greedy`, else as the policy draws them."""

    def __init__(self, policy: Policy, num_slots: int, device: torch.device, greedy: bool) -> None:
        self._policy = policy.to(device)
        self._device = device
        self._state = policy.initial_state(num_slots, device)
        self._choice = Choice()
        if greedy:
            self._choice = Choice(greedy=torch.ones(num_slots, dtype=torch.bool, device=device))

    def act(self, shown: EnvStep) -> np.ndarray:
        """Actions as the environment takes them."""
        # Copied: environments may show arrays that nobody may write to, or that they write to themselves.
        observation = {
            name: torch.tensor(array, device=self._device) for name, array in shown.observation.items()
        }
        first = torch.tensor(shown.first, device=self._device)
        with torch.inference_mode():
            acted = self._policy.act(observation, first, self._state, self._choice)
        self._state = acted.state
        action: np.ndarray = acted.outputs[ACTION].cpu().numpy()
        return action
