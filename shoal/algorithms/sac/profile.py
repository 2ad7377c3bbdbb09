"""What SAC can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import Profile, TableProfile
from shoal.algorithms.settings import ContinuousSection


class SacConfig(ContinuousSection):
    """SAC with an automatic temperature and twin critics (Haarnoja et al. 2018)."""

    trains = "soft_actor_critic"

    name: Literal["sac"] = Field("sac", description="The algorithm.")
    initial_temperature: float = Field(1.0, gt=0, description="Alpha at the beginning.")
    learn_temperature: bool = Field(True, description="Alpha follows the target entropy.")
    temperature_learning_rate: float = Field(
        3e-4, gt=0, le=1, description="The optimiser's step size of alpha."
    )
    target_entropy: float | None = Field(
        None,
        description="Entropy that alpha keeps the policy at, of actions in half widths of bounds; `null`: "
        "minus the elements of an action.",
    )


PROFILE = Profile(
    settings=SacConfig,
    summary="SAC, from a replay",
    actions=frozenset({"box"}),
    table=TableProfile(max_steps=1_000_000, min_steps=1000),
    values={
        # Short unrolls: what was just seen is in the replay soon after.
        "actor": {"envs": 4, "groups": 1, "unroll_length": 5},
        # Transitions per batch.
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
