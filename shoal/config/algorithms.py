"""Hyperparameters of the algorithms, a section each. No torch: every service can read them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.config.section import Section


class ImpalaConfig(Section):
    """IMPALA with V-trace (Espeholt et al. 2018)."""

    name: Literal["impala"] = Field("impala", description="The algorithm.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Adam's step size.")
    discount: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    reward_scale: float = Field(
        1.0, gt=0, description="Rewards are multiplied by this; best when values are of the order of 1 to 10."
    )
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")
    value_cost: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_cost: float = Field(0.01, ge=0, description="Weight of the entropy bonus.")
    max_grad_norm: float = Field(0.5, gt=0, description="Gradients are scaled down to this norm.")
