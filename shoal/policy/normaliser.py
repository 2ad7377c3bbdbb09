"""Observation normalisation: a module of the policy, so that its statistics travel with the weights.

Every element of vectors of numbers gets mean 0 and deviation 1 over all observations that the learner has
trained on; images for a network of images (`shoal.policy.encoders`), categories and zeros and ones have
scales of their own. Whoever has the weights, inference, `eval` or an exported file, sees the same numbers;
only the learner, in its training thread, updates them. All frames of a stack are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from shoal.policy.scaling import input_scaling
from shoal.records import ArraySpec

# What comes out lies within +- this: one odd observation must not drown the others.
MAX_NORMALISED = 10.0

# Added to variances: what never changed so far may begin to.
_EPSILON = 1e-8


def can_normalise(array: ArraySpec) -> bool:
    """Floats, and integers that are more than 0 and 1. Integers whose bounds are not known stay as they are:
    so they were in all releases that did not know them, and in their checkpoints."""
    if array.dtype.startswith("float"):
        return True
    return array.num_categories == 0 and array.is_bounded and not (array.low >= 0.0 and array.high <= 1.0)


def as_shown(array: ArraySpec) -> ArraySpec:
    """What comes out of the normaliser: integers become floats."""
    dtype = array.dtype if array.dtype.startswith("float") else "float32"
    return replace(array.without_bounds(), dtype=dtype)


class ObservationNormaliser(nn.Module):
    """Before the first update it only clips, and scales integers by their bounds."""

    # What acting needs.
    offset: Tensor
    scale: Tensor
    # Of all that was observed, in float64: sums over a long run must not lose what is added to them.
    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, arrays: Sequence[ArraySpec]) -> None:
        """Of at least one array, each of which can be normalised."""
        super().__init__()
        # Where the elements of each array lie in the vectors.
        self._places: dict[str, slice] = {}
        self._shapes = {array.name: array.shape for array in arrays}
        self._dtypes = {array.name: _torch_dtype(as_shown(array)) for array in arrays}
        size = 0
        for array in arrays:
            width = math.prod(array.shape)
            self._places[array.name] = slice(size, size + width)
            size += width
        self.register_buffer("offset", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        for array in arrays:
            scaling = input_scaling(array)
            self.offset[self._places[array.name]] = scaling.offset
            self.scale[self._places[array.name]] = scaling.scale

    def forward(self, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Arrays [..., *shape] of any leading dimensions; those that are not normalised as they are."""
        normalised = dict(observation)
        for name, place in self._places.items():
            shape = self._shapes[name]
            centred = observation[name].to(torch.float32) - self.offset[place].reshape(shape)
            scaled = centred * self.scale[place].reshape(shape)
            normalised[name] = scaled.clamp(-MAX_NORMALISED, MAX_NORMALISED).to(self._dtypes[name])
        return normalised

    @torch.no_grad()
    def moments(self, observation: dict[str, Tensor], counts_TB: Tensor | None = None) -> Tensor:
        """Of unrolls [S, B, ...], for `observe`: the count, sums and sums of squares, in one vector.

        `counts_TB`: 1 for those that count and 0 for the others, all count if it is None. Moments of several
        learners, whose statistics are the same, are added up. Last rows are left out: they are the first ones
        of unrolls that follow.
        """
        rows = [
            observation[name][:-1].flatten(0, 1).reshape(-1, math.prod(shape)).to(torch.float64)
            for name, shape in self._shapes.items()
        ]
        # Around the mean so far, which is the same everywhere: squares of large numbers would cancel out.
        centred = torch.cat(rows, dim=1) - self.mean
        if counts_TB is None:
            return torch.cat([self.count.new_tensor([len(centred)]), centred.sum(0), centred.square().sum(0)])
        counts = counts_TB.flatten().to(torch.float64)
        return torch.cat([counts.sum().reshape(1), counts @ centred, counts @ centred.square()])

    @torch.no_grad()
    def observe(self, moments: Tensor) -> None:
        """Merge the moments of new observations (Chan et al. 1983)."""
        num, sums, squares = moments[0], *moments[1:].chunk(2)
        total = (self.count + num).clamp(min=1.0)
        shift = sums / total
        # sum (x - mean')^2 = sum (x - mean)^2 - total (mean' - mean)^2, over the old and the new ones.
        variance = (self.variance * self.count + squares) / total - shift.square()
        self.variance.copy_(variance.clamp(min=0.0).where(num > 0, self.variance))
        self.mean.add_(shift)
        self.count.add_(num)
        self.offset.copy_(self.mean)
        self.scale.copy_((self.variance + _EPSILON).rsqrt())


def _torch_dtype(array: ArraySpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, array.dtype)
    return dtype
