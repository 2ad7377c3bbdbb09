"""The settings of appo. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.settings import ClippedSection


class AppoConfig(ClippedSection):
    """Asynchronous PPO: PPO's clipped objective with V-trace targets, on data of older policies."""

    name: Literal["appo"] = Field("appo", description="The algorithm.")
    epochs: int = Field(2, ge=1, le=1000, description="Passes over each batch.")
    minibatches: int = Field(
        2, ge=1, le=1 << 16, description="Parts of a batch, an optimiser step each; split by environments."
    )
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")
