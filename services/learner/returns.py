"""Returns of some episodes as count, mean and spread, and whether one set of them is above another.

Plain data, owned by whoever keeps it; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Fewer episodes on both sides together say nothing.
MIN_EPISODES = 4
# Differences without any spread would be infinitely many standard errors.
MAX_STANDARD_ERRORS = 1e6


@dataclass
class Returns:
    """Welford's running mean; `square` is the sum of squared distances from it."""

    num: int = 0
    mean: float = 0.0
    square: float = 0.0

    @staticmethod
    def of(values: Iterable[float]) -> Returns:
        array = np.fromiter(values, np.float64)
        if not array.size:
            return Returns()
        mean = float(array.mean())
        return Returns(array.size, mean, float(np.square(array - mean).sum()))

    def add(self, value: float) -> None:
        self.num += 1
        distance = value - self.mean
        self.mean += distance / self.num
        self.square += distance * (value - self.mean)

    @property
    def variance(self) -> float | None:
        """Unbiased; None for a single episode."""
        return self.square / (self.num - 1) if self.num > 1 else None

    def to_json(self) -> list[float]:
        return [self.num, self.mean, self.square]

    @staticmethod
    def from_json(values: Any) -> Returns:
        """Raises TypeError or ValueError for anything that `to_json` does not write."""
        num, mean, square = values
        return Returns(int(num), float(mean), float(square))


def standard_errors_above(these: Returns, those: Returns) -> float | None:
    """Welch's z = (mean - mean') / sqrt(s^2/n + s'^2/n'). None if there are too few episodes to say.

    The spread of a single episode is taken to be that of the other side.
    """
    if not these.num or not those.num or these.num + those.num < MIN_EPISODES:
        return None
    spread, other = these.variance, those.variance
    square = _first_known(spread, other) / these.num + _first_known(other, spread) / those.num
    difference = these.mean - those.mean
    if not difference:
        return 0.0
    most = math.copysign(MAX_STANDARD_ERRORS, difference)
    return difference / math.sqrt(square) if abs(difference) < abs(most) * math.sqrt(square) else most


def _first_known(*variances: float | None) -> float:
    return next((variance for variance in variances if variance is not None), 0.0)
