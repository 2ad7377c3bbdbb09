"""The settings of impala. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.algorithms.settings import ActorCriticSection


class ImpalaConfig(ActorCriticSection):
    """IMPALA with V-trace (Espeholt et al. 2018)."""

    learns_from = ("queue", "sequence")

    name: Literal["impala"] = Field("impala", description="The algorithm.")
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")
