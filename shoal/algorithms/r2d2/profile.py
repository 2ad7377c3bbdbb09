"""What R2D2 can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import Profile, TableProfile
from shoal.algorithms.settings import InitialPriority, ReplayedSection


class R2d2Config(ReplayedSection):
    """R2D2: recurrent replay from stored states with burn-in (Kapturowski et al. 2019)."""

    trains = "q"
    explores_by = "epsilon"
    learns_from = ("sequence",)

    name: Literal["r2d2"] = Field("r2d2", description="The algorithm.")
    n_step: int = Field(
        5, ge=1, le=1024, description="Steps of reward before the bootstrap, within an item and an episode."
    )
    double: bool = Field(True, description="The network chooses the next action, its target values it.")
    burn_in: int = Field(
        0, ge=0, le=10_000, description="First steps of a sequence that only warm up the recurrent state."
    )
    rescale_epsilon: float = Field(
        1e-3, ge=0, le=1, description="Epsilon of the value rescaling h; 0: values are not rescaled."
    )
    priority_max_share: float = Field(
        0.9,
        ge=0,
        le=1,
        description="Eta: share of the largest error in a sequence's priority, beside the mean.",
    )
    target_every: int = Field(
        500, ge=1, le=1 << 30, description="Learner steps between two copies into the target network."
    )

    @property
    def num_warmup_rows(self) -> int:
        return self.burn_in

    @property
    def initial_priority(self) -> InitialPriority:
        return InitialPriority(
            self.n_step, self.discount, self.rescale_epsilon, self.priority_max_share, self.burn_in
        )


PROFILE = Profile(
    settings=R2d2Config,
    summary="R2D2, recurrent, from a prioritised replay",
    actions=frozenset({"discrete"}),
    table=TableProfile(max_steps=300_000, min_steps=2000, alpha=0.9),
    values={
        "actor": {"envs": 32, "groups": 2, "unroll_length": 20},
        "exploration": {"epsilon": 0.3},
        # Sequences per batch.
        "learner": {"batch_envs": 64},
        "policy": {
            "hidden_sizes": [64],
            "activation": "relu",
            "normalise_observations": True,
            "recurrent": "lstm",
            "recurrent_size": 64,
        },
        "algorithm": {
            "learning_rate": 1e-3,
            "max_grad_norm": 10.0,
            "importance_exponent": 0.6,
            "updates_per_step": 1 / 320,
            "target_every": 100,
        },
    },
    images={
        "policy": {"recurrent_size": 256},
        "algorithm": {"learning_rate": 2.5e-4, "target_every": 1000},
    },
    image_table=TableProfile(max_steps=300_000, min_steps=20_000, alpha=0.9),
)
