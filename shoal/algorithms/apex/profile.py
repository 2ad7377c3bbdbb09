"""What Ape-X DQN can be set to, and what it needs around it. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.profile import Profile, TableProfile
from shoal.algorithms.settings import InitialPriority, ReplayedSection


class ApexConfig(ReplayedSection):
    """Ape-X DQN: double, n-step, prioritised (Horgan et al. 2018)."""

    trains = "q"
    explores_by = "epsilon"

    name: Literal["apex"] = Field("apex", description="The algorithm.")
    n_step: int = Field(
        3, ge=1, le=1024, description="Steps of reward before the bootstrap, within an item and an episode."
    )
    double: bool = Field(True, description="The network chooses the next action, its target values it.")
    target_every: int = Field(
        500, ge=1, le=1 << 30, description="Learner steps between two copies into the target network."
    )
    huber_delta: float = Field(1.0, gt=0, description="Errors above this count linearly, not squared.")

    @property
    def initial_priority(self) -> InitialPriority:
        return InitialPriority(self.n_step, self.discount)


PROFILE = Profile(
    settings=ApexConfig,
    summary="Ape-X DQN, from a prioritised replay",
    actions=frozenset({"discrete"}),
    table=TableProfile(max_steps=300_000, min_steps=1000, alpha=0.6),
    values={
        "actor": {"envs": 16, "groups": 2, "unroll_length": 20},
        # The most daring environment takes a random action in five, most of the others hardly any.
        "exploration": {"epsilon": 0.2},
        "learner": {"batch_envs": 256, "publish_every": 2},
        "policy": {"hidden_sizes": [128, 128], "activation": "relu", "normalise_observations": True},
        "algorithm": {
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "max_grad_norm": 10.0,
            "normalise_returns": True,
            "updates_per_step": 1 / 16,
            "target_every": 30,
        },
    },
    images={
        "actor": {"envs": 32, "unroll_length": 10},
        "learner": {"batch_envs": 32, "publish_every": 4},
        "policy": {"frame_stack": 4},
        "algorithm": {"learning_rate": 2.5e-4, "updates_per_step": 1 / 40, "target_every": 1000},
    },
    image_table=TableProfile(max_steps=300_000, min_steps=20_000, alpha=0.6),
)
