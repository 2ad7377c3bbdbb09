"""The distribution over MultiDiscrete actions: one category for each element, independent of the others.

Elements may have different numbers of categories. All of them are computed as one array [..., D, N], padded
to the largest number with categories that have no chance. Stateless but for the layout's index; one thread.

Legend: D elements, N categories of the largest.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.policy.distributions import Categorical
from shoal.policy.masks import allowed_actions


class ElementLayout(nn.Module):
    """Where the categories of each element are among sum(nvec) parameters."""

    index: Tensor
    exists: Tensor

    def __init__(self, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = (len(nvec), max(nvec))
        self.is_even = min(nvec) == max(nvec)
        num = torch.tensor(nvec).unsqueeze(1)
        category = torch.arange(max(nvec))
        start = num.cumsum(0) - num
        # Of a padding category any place will do.
        index = torch.where(category < num, start + category, 0)
        self.register_buffer("index", index.flatten(), persistent=False)
        self.register_buffer("exists", category < num, persistent=False)

    def padded(self, params: Tensor) -> Tensor:
        """[..., sum(nvec)] as [..., D, N]."""
        flat = params if self.is_even else params.index_select(-1, self.index)
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def allowed(self, mask: Tensor | None) -> Tensor | None:
        """[..., D, N] from a mask [..., sum(nvec)]; None: nothing is forbidden, and nothing padded."""
        if mask is None:
            return None if self.is_even else self.exists
        shown = self.padded(mask)
        return allowed_actions(shown) if self.is_even else allowed_actions(shown * self.exists) & self.exists


class MultiCategorical:
    """A categorical of each element, [..., D, N]."""

    def __init__(self, elements: Categorical) -> None:
        self.elements = elements

    def log_prob(self, action: Tensor) -> Tensor:
        return self.elements.log_prob(action).sum(-1)

    def entropy(self) -> Tensor:
        return self.elements.entropy().sum(-1)

    def sample(self) -> Tensor:
        return self.elements.sample()

    def mode(self) -> Tensor:
        return self.elements.mode()

    def explored(self, epsilon: Tensor) -> MultiCategorical:
        """Each element for itself is random with chance epsilon [...]."""
        return MultiCategorical(self.elements.explored(epsilon.unsqueeze(-1)))
