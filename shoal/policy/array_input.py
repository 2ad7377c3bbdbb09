"""One array of an observation as the floats that a fully connected layer takes. One thread at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.records import ArraySpec

# A spec comes off a socket: it must not be able to ask for a layer of any size.
MAX_INPUTS = 1 << 20


class ArrayInput(nn.Module):
    """[N, ...] as floats [N, width]: categories one-hot, uint8 scaled to [0, 1], the rest as it is."""

    categories: Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.rank = len(spec.shape)
        self.width = math.prod(spec.shape) * max(1, spec.num_categories)
        self.one_hot = spec.num_categories > 0
        self.scale = 1.0 / 255.0 if spec.dtype == "uint8" and not self.one_hot else 1.0
        if self.width > MAX_INPUTS:
            raise UserError(
                f"{spec.name} has {self.width} inputs for the network (limit {MAX_INPUTS}): "
                "wrap the environment so that it shows less"
            )
        num_categories = spec.num_categories if self.one_hot else 0
        self.register_buffer("categories", torch.arange(num_categories), persistent=False)

    def forward(self, array: Tensor) -> Tensor:
        if self.one_hot:
            # Compared, not scattered: a category out of range becomes zeros instead of a crash.
            same = array.to(torch.int64).unsqueeze(-1) == self.categories
            return same.to(torch.float32).flatten(1)
        flat = array.to(torch.float32)
        if self.scale != 1.0:
            flat = flat * self.scale
        return flat if self.rank == 1 else flat.reshape(flat.shape[0], self.width)
