"""The policy network: built from the configuration and the environment's spec. What services import.

The learner builds it to train, inference builds it to act, both from the same two inputs, so that
their weights have the same names and shapes. A `Policy` is used by one thread at a time.
"""

from __future__ import annotations

from shoal.config.tree import PolicySection
from shoal.policy.actor_critic import ActorCritic, PolicyOutput
from shoal.policy.policy import Acted, Choice, Policy
from shoal.records import EnvSpec

__all__ = ["Acted", "ActorCritic", "Choice", "Policy", "PolicyOutput", "build_policy"]


def build_policy(config: PolicySection, spec: EnvSpec) -> Policy:
    """A policy with fresh weights from torch's global generator. UserError for a space it cannot handle."""
    return ActorCritic(config, spec)
