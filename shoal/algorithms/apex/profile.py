"""The settings of apex. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
