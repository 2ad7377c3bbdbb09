"""The settings of td3. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
