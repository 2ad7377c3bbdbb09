"""What IMPALA can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import ANY_ACTION, Profile, TableProfile
from shoal.algorithms.settings import ActorCriticSection


class ImpalaConfig(ActorCriticSection):
    """IMPALA with V-trace (Espeholt et al. 2018)."""

    learns_from = ("queue", "sequence")

    name: Literal["impala"] = Field("impala", description="The algorithm.")
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")


PROFILE = Profile(
    settings=ImpalaConfig,
    summary="IMPALA",
    actions=ANY_ACTION,
    table=TableProfile(),
    values={
        # Two groups: one steps while the other waits for its actions.
        "actor": {"envs": 32, "groups": 2, "unroll_length": 20},
        "policy": {"hidden_sizes": [64, 64], "activation": "tanh", "normalise_observations": True},
        "algorithm": {
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "entropy_cost": 0.003,
            "max_grad_norm": 1.0,
            "normalise_returns": True,
            "advantage_noise": 0.005,
        },
    },
    continuous={
        "policy": {"initial_log_std": -0.5},
        "algorithm": {"entropy_cost": 0.0},
    },
    recurrent={
        "actor": {"envs": 64, "unroll_length": 32},
        "algorithm": {"learning_rate": 2e-3},
    },
    images={
        "actor": {"envs": 64},
        "policy": {"frame_stack": 4},
        "algorithm": {"learning_rate": 5e-4, "max_grad_norm": 0.5, "entropy_cost": 0.01},
    },
)
