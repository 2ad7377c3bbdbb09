"""How much of its targets a value function explains. A pure function for curves.

Legend: T transitions, B environments.
"""

from __future__ import annotations

from torch import Tensor


def explained_variance(error_TB: Tensor, target_TB: Tensor, weight_TB: Tensor) -> Tensor:
    """1 - Var(v - V) / Var(v) over steps by their weight: 1 is a perfect value function, 0 a constant one."""
    whole = weight_TB.sum().clamp(min=1.0)

    def variance(values_TB: Tensor) -> Tensor:
        mean = (values_TB * weight_TB).sum() / whole
        return ((values_TB - mean).square() * weight_TB).sum() / whole

    return 1.0 - variance(error_TB) / variance(target_TB).clamp(min=1e-8)
