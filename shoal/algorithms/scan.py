"""The backward recursion that V-trace and GAE share. A pure function, any device.

Legend: T transitions, B environments.
"""

from __future__ import annotations

import torch
from torch import Tensor


def backward_scan(add_TB: Tensor, decay_TB: Tensor) -> Tensor:
    """x_t = add_t + decay_t x_t+1, from x_T = 0. One fused operation per row: T is small, B is not."""
    adds, decays = add_TB.unbind(), decay_TB.unbind()
    x_B = adds[-1]
    rows = [x_B]
    for add_B, decay_B in zip(adds[-2::-1], decays[-2::-1], strict=True):
        x_B = torch.addcmul(add_B, decay_B, x_B)
        rows.append(x_B)
    rows.reverse()
    return torch.stack(rows)
