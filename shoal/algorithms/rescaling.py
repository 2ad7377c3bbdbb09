"""Value rescaling (Pohlen et al. 2018; Kapturowski et al. 2019): values of any size become small ones.

h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, which is monotonic; epsilon keeps its inverse Lipschitz.
Pure functions, any device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rescaled(values: Tensor, epsilon: float) -> Tensor:
    """h; the values themselves if epsilon is 0."""
    if epsilon == 0:
        return values
    size = values.abs()
    # sqrt(1 + x) - 1, without the difference of two numbers that are almost the same.
    return torch.sign(values) * (size / ((size + 1.0).sqrt() + 1.0)) + epsilon * values


def unscaled(values: Tensor, epsilon: float) -> Tensor:
    """The inverse of h (proposition A.2 of Pohlen et al.), in a form that is exact near 0 too."""
    if epsilon == 0:
        return values
    size = values.abs()
    # u = sqrt(|x| + 1) - 1 solves epsilon u^2 + (1 + 2 epsilon) u = |h|, and x = u^2 + 2 u.
    linear = 1.0 + 2.0 * epsilon
    root = 2.0 * size / (linear + torch.sqrt(linear**2 + 4.0 * epsilon * size))
    return torch.sign(values) * root * (root + 2.0)
