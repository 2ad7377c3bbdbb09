"""The policy network: built from the configuration and the environment's spec. What services import.

The learner builds it to train, inference builds it to act, both from the same two inputs, so that
their weights have the same names and shapes. A `Policy` is used by one thread at a time.
"""

from __future__ import annotations

from shoal.config.network import PolicySection
from shoal.policy.actor_critic import ActorCritic, PolicyOutput
from shoal.policy.deterministic import DeterministicPolicy
from shoal.policy.exploration import Choice
from shoal.policy.policy import Acted, Policy
from shoal.policy.q import QPolicy
from shoal.policy.soft_actor_critic import SoftActorCritic
from shoal.records import EnvSpec

__all__ = [
    "Acted",
    "ActorCritic",
    "Choice",
    "DeterministicPolicy",
    "Policy",
    "PolicyOutput",
    "QPolicy",
    "SoftActorCritic",
    "build_policy",
]


def build_policy(config: PolicySection, spec: EnvSpec) -> Policy:
    """A policy with fresh weights from torch's global generator. UserError for a space it cannot handle."""
    match config.kind:
        case "actor_critic":
            return ActorCritic(config, spec)
        case "q":
            return QPolicy(config, spec)
        case "soft_actor_critic":
            return SoftActorCritic(config, spec)
        case "deterministic":
            return DeterministicPolicy(config, spec)
