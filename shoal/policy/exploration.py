"""Exploration on top of a policy's own randomness, row by row: epsilon and noise. Stateless; any thread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.errors import UserError


@dataclass(frozen=True)
class Choice:
    """How actions are chosen, row by row, [B] each; None: nobody. `Choice()` is as the policy samples.

    Greedy rows get the most likely action, without epsilon and noise.
    """

    greedy: Tensor | None = None
    # Chance of a random action instead.
    epsilon: Tensor | None = None
    # Deviation of the noise on a deterministic action, in half widths of its bounds.
    noise: Tensor | None = None

    def epsilon_unless_greedy(self) -> Tensor | None:
        return _unless(self.greedy, self.epsilon)

    def noise_unless_greedy(self) -> Tensor | None:
        return _unless(self.greedy, self.noise)


def _unless(greedy: Tensor | None, amount: Tensor | None) -> Tensor | None:
    return amount if amount is None or greedy is None else amount.masked_fill(greedy, 0.0)


def in_rows(rows: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """[B, ...]: `chosen` where `rows` [B] is set, `other` elsewhere."""
    return torch.where(rows.reshape(-1, *(1,) * (other.ndim - 1)), chosen, other)


def random_rows(epsilon: Tensor) -> Tensor:
    """[B]: set with chance epsilon."""
    return torch.rand_like(epsilon) < epsilon


def refuse_noise(noise: bool, kind: str) -> None:
    """Of every kind but `deterministic`: the others draw their actions themselves."""
    if noise:
        raise UserError(
            f"exploration.noise is for 'deterministic' policies, and this one is {kind!r}: set it to 0"
        )
