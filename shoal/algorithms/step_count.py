"""A number of steps that is saved with the algorithm: the rhythm in which targets follow. Training thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class StepCount(nn.Module):
    """Stays on the CPU wherever the algorithm goes: reading it waits for no device."""

    num: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num", torch.zeros((), dtype=torch.int64))

    def add(self) -> int:
        """One more; returns how many there were with it."""
        self.num += 1
        return int(self.num)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self
