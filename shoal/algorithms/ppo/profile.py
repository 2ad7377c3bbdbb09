"""The settings of ppo. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.settings import ClippedSection


class PpoConfig(ClippedSection):
    """PPO with GAE (Schulman et al. 2017, 2016)."""

    name: Literal["ppo"] = Field("ppo", description="The algorithm.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Lambda of generalised advantage estimation.")
    value_clip: float | None = Field(
        None, gt=0, description="New values are clipped to the old ones +- this. `null`: not at all."
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
