"""How the numbers of an observation are scaled by their bounds before a network sees them.

Of integers and of images; vectors of floats are for the normaliser. Used by `shoal.policy.array_input`,
`shoal.policy.images` and `shoal.policy.normaliser`. Stateless; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.records import ArraySpec

# Bounds beyond this say nothing about the numbers to come: dividing by them would hide those.
MAX_BOUND = 1e6


@dataclass(frozen=True)
class Scaling:
    """x becomes (x - offset) * scale."""

    offset: float = 0.0
    scale: float = 1.0


UNSCALED = Scaling()
BYTES = Scaling(scale=1.0 / 255.0)


def scaling_of(array: ArraySpec) -> Scaling:
    """To [0, 1] by the bounds. What lies there anyway, and what has no bounds to speak of, stays as it is;
    uint8 whose bounds are not known is taken for 0..255."""
    if not has_useful_bounds(array):
        return BYTES if array.dtype == "uint8" else UNSCALED
    if array.low >= 0.0 and array.high <= 1.0:
        return UNSCALED
    return Scaling(array.low, 1.0 / (array.high - array.low))


def input_scaling(array: ArraySpec) -> Scaling:
    """Of an array that is no image. Floats with bounds are rarely spread over all of them: they stay as they
    are, and the normaliser makes more of them."""
    return UNSCALED if array.dtype.startswith("float") else scaling_of(array)


def has_useful_bounds(array: ArraySpec) -> bool:
    """Finite, apart, and not just what the dtype can hold, unless that is a byte."""
    if not -MAX_BOUND <= array.low < array.high <= MAX_BOUND:
        return False
    dtype = np.dtype(array.dtype)
    return dtype.kind not in "iu" or dtype.itemsize == 1 or array.high < np.iinfo(dtype).max
