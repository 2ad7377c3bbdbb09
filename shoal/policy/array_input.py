"""One array of an observation as the floats that a fully connected layer takes. One thread at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.policy.scaling import UNSCALED, input_scaling
from shoal.records import ArraySpec

# A spec comes off a socket: it must not be able to ask for a layer of any size.
MAX_INPUTS = 1 << 20

# More categories than this are embedded: a batch of one-hot rows would be mostly zeros.
MAX_ONE_HOT = 1024
EMBEDDING_SIZE = 64


def array_input(spec: ArraySpec) -> ArrayInput:
    """Raises UserError for an array that asks for too many weights."""
    num_numbers = math.prod(spec.shape) * max(1, spec.num_categories)
    if num_numbers > MAX_INPUTS:
        raise UserError(
            f"{spec.name} has {num_numbers} inputs for the network (limit {MAX_INPUTS}): "
            "wrap the environment so that it shows less"
        )
    if spec.num_categories > MAX_ONE_HOT:
        return EmbeddedInput(spec)
    return OneHotInput(spec) if spec.num_categories else NumbersInput(spec)


class NumbersInput(nn.Module):
    """[N, ...] as floats [N, width]: integers scaled by their bounds, floats as they are."""

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.rank = len(spec.shape)
        self.width = math.prod(spec.shape)
        scaling = input_scaling(spec)
        self.is_scaled = scaling != UNSCALED
        self.offset, self.scale = scaling.offset, scaling.scale

    def forward(self, array: Tensor) -> Tensor:
        flat = array.to(torch.float32)
        if self.is_scaled:
            flat = (flat - self.offset) * self.scale
        return flat if self.rank == 1 else flat.reshape(flat.shape[0], self.width)


class OneHotInput(nn.Module):
    """Categories [N, ...] as [N, elements * categories]; one out of range is zeros."""

    categories: Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.width = math.prod(spec.shape) * spec.num_categories
        self.register_buffer("categories", torch.arange(spec.num_categories), persistent=False)

    def forward(self, array: Tensor) -> Tensor:
        # Compared, not scattered: a category out of range becomes zeros instead of a crash.
        same = array.to(torch.int64).unsqueeze(-1) == self.categories
        return same.to(torch.float32).flatten(1)


class EmbeddedInput(nn.Module):
    """Categories [N, ...] as [N, elements * EMBEDDING_SIZE], each element with a table of its own."""

    first_rows: Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        num_elements = math.prod(spec.shape)
        self.num_categories = spec.num_categories
        self.width = num_elements * EMBEDDING_SIZE
        self.table = nn.Embedding(num_elements * spec.num_categories, EMBEDDING_SIZE)
        self.register_buffer("first_rows", torch.arange(num_elements) * spec.num_categories, persistent=False)

    def forward(self, array: Tensor) -> Tensor:
        category = array.to(torch.int64).reshape(array.shape[0], -1)
        inside = (category >= 0) & (category < self.num_categories)
        found: Tensor = self.table(category.clamp(0, self.num_categories - 1) + self.first_rows)
        # As with one-hot rows: a category out of range becomes zeros instead of a crash.
        return (found * inside.unsqueeze(-1)).flatten(1)


ArrayInput = NumbersInput | OneHotInput | EmbeddedInput
