"""What TD3 can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import Profile, TableProfile
from shoal.algorithms.settings import ContinuousSection


class Td3Config(ContinuousSection):
    """TD3: twin critics, delayed policy, smoothed targets (Fujimoto et al. 2018)."""

    trains = "deterministic"
    explores_by = "noise"

    name: Literal["td3"] = Field("td3", description="The algorithm.")
    policy_delay: int = Field(2, ge=1, le=1000, description="Critic steps per step of policy and targets.")
    target_noise: float = Field(
        0.2,
        ge=0,
        le=10,
        description="Deviation of the noise on target actions, in half widths of bounds.",
    )
    target_noise_clip: float = Field(0.5, ge=0, le=10, description="That noise is clipped to +- this.")


PROFILE = Profile(
    settings=Td3Config,
    summary="TD3, from a replay",
    actions=frozenset({"box"}),
    table=TableProfile(max_steps=1_000_000, min_steps=1000),
    values={
        "actor": {"envs": 4, "groups": 1, "unroll_length": 5},
        "exploration": {"noise": 0.1},
        "learner": {"batch_envs": 256, "publish_every": 4},
        "policy": {"hidden_sizes": [256, 256], "activation": "relu"},
        "algorithm": {"learning_rate": 1e-3, "updates_per_step": 1.0},
    },
    images={
        "actor": {"unroll_length": 10},
        "learner": {"batch_envs": 16},
        "policy": {"frame_stack": 3},
        "algorithm": {"learning_rate": 3e-4, "updates_per_step": 0.5},
    },
    image_table=TableProfile(max_steps=200_000, min_steps=2000),
)
