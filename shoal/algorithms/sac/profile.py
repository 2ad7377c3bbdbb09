"""The settings of sac. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
