"""What asynchronous PPO can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import ANY_ACTION, Profile, TableProfile
from shoal.algorithms.settings import ClippedSection


class AppoConfig(ClippedSection):
    """Asynchronous PPO: PPO's clipped objective with V-trace targets, on data of older policies."""

    name: Literal["appo"] = Field("appo", description="The algorithm.")
    epochs: int = Field(2, ge=1, le=1000, description="Passes over each batch.")
    minibatches: int = Field(
        2,
        ge=1,
        le=1 << 16,
        description="Parts of a batch, an optimiser step each: of its steps, or of its environments if the "
        "policy has a state.",
    )
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")


PROFILE = Profile(
    settings=AppoConfig,
    summary="asynchronous PPO",
    actions=ANY_ACTION,
    # Many passes over a batch make what waits behind it old: as little as keeps both sides at work.
    table=TableProfile(max_unrolls=1),
    values={
        # Two groups: one steps while the other waits for its actions.
        "actor": {"envs": 64, "groups": 2, "unroll_length": 32, "max_unacked_items": 1},
        "learner": {"prefetch_batches": 1, "prefetch_items": 1},
        "policy": {"hidden_sizes": [64, 64], "activation": "tanh", "normalise_observations": True},
        "algorithm": {
            "learning_rate": 5e-4,
            "learning_rate_schedule": "linear",
            # As many passes as pay, and none of them goes far: behaviour is some versions old.
            "clip": 0.1,
            "epochs": 8,
            "minibatches": 8,
            "entropy_cost": 0.01,
            "optimiser_epsilon": 1e-5,
            "normalise_returns": True,
            "advantage_noise": 0.005,
        },
    },
    continuous={
        "policy": {"initial_log_std": -0.5},
        "algorithm": {"entropy_cost": 0.0},
    },
    # Unrolls are gone through step by step: many side by side, in few parts.
    recurrent={
        "algorithm": {"learning_rate": 1e-3, "epochs": 2, "minibatches": 2, "clip": 0.2},
    },
    images={
        "policy": {"frame_stack": 4},
        "algorithm": {"epochs": 2, "minibatches": 4},
    },
)
