"""What PPO can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import ANY_ACTION, Profile, TableProfile
from shoal.algorithms.settings import ClippedSection


class PpoConfig(ClippedSection):
    """PPO with GAE (Schulman et al. 2017, 2016)."""

    name: Literal["ppo"] = Field("ppo", description="The algorithm.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Lambda of generalised advantage estimation.")
    value_clip: float | None = Field(
        None, gt=0, description="New values are clipped to the old ones +- this. `null`: not at all."
    )
    recompute_advantages: bool = Field(
        False,
        description="Advantages and returns are worked out anew, with the values of the moment, before each "
        "pass over a batch.",
    )
    synchronous: bool = Field(
        True, description="Actors wait for the newest version before each unroll: all data are on-policy."
    )
    max_wait_s: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="Longest such wait (s). Then the actor acts on with the newest version there is, so that "
        "an unroll that was lost with a replay shard is not waited for for ever. Well above what training on "
        "a batch takes, and the slowest actor for an unroll: else unrolls are made in vain.",
    )

    @property
    def is_synchronous(self) -> bool:
        return self.synchronous

    @property
    def version_wait_s(self) -> float:
        return self.max_wait_s if self.synchronous else 0.0


PROFILE = Profile(
    settings=PpoConfig,
    summary="synchronous PPO",
    actions=ANY_ACTION,
    # Nothing is ever old in there: all wait for each other.
    table=TableProfile(max_unrolls=16),
    values={
        # One group: while a batch is trained on, all environments wait anyway. Many environments and short
        # unrolls: a message costs the same whatever it holds, and consecutive steps are much alike.
        "actor": {"envs": 64, "groups": 1, "unroll_length": 32},
        "policy": {"hidden_sizes": [64, 64], "activation": "tanh", "normalise_observations": True},
        "algorithm": {
            "learning_rate": 6e-4,
            "learning_rate_schedule": "linear",
            "gae_lambda": 0.98,
            "epochs": 10,
            "minibatches": 8,
            "entropy_cost": 0.01,
            "optimiser_epsilon": 1e-5,
            "normalise_returns": True,
            "advantage_noise": 0.005,
            "recompute_advantages": True,
        },
    },
    continuous={
        "policy": {"initial_log_std": -0.5},
        "algorithm": {"entropy_cost": 0.0},
    },
    # Unrolls are gone through step by step: many side by side, in few parts.
    recurrent={
        "algorithm": {"learning_rate": 1e-3, "epochs": 4, "minibatches": 4, "recompute_advantages": False},
    },
    images={
        "actor": {"envs": 32, "unroll_length": 64},
        "policy": {"frame_stack": 4},
        "algorithm": {
            "learning_rate": 5e-4,
            "gae_lambda": 0.95,
            "clip": 0.1,
            "epochs": 3,
            "minibatches": 8,
            "recompute_advantages": False,
        },
    },
)
