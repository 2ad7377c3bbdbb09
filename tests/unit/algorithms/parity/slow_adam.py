"""Adam (Kingma and Ba 2015, algorithm 1), one parameter at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence


def adam(
    parameters: Sequence[float],
    gradients: Sequence[Sequence[float]],
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> list[float]:
    """The parameters after a step for each of the gradients."""
    found = []
    for i, parameter in enumerate(parameters):
        m = v = 0.0
        for t, gradient in enumerate(gradients, start=1):
            m = beta_1 * m + (1.0 - beta_1) * gradient[i]
            v = beta_2 * v + (1.0 - beta_2) * gradient[i] ** 2
            m_hat = m / (1.0 - beta_1**t)
            v_hat = v / (1.0 - beta_2**t)
            parameter -= learning_rate * m_hat / (math.sqrt(v_hat) + epsilon)
        found.append(parameter)
    return found
