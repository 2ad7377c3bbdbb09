"""What losses are computed from: trajectories side by side. Plain data; the learner fills it.

Legend: T transitions, S = T + 1 rows, B environments or items.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Unrolls [S, B, ...]. `trajectory.proto` says what rows mean: step t is an autoreset step, without a
    transition, when row t + 1 starts an episode.

    Single transitions of n steps are unrolls of two rows: `reward_SB[0]` is what the n steps summed up to,
    row 1 is where they led, and `discount_SB[0]` what the value there is worth.
    """

    observation: dict[str, Tensor]
    action_SB: Tensor
    reward_SB: Tensor
    terminated_SB: Tensor
    truncated_SB: Tensor
    first_SB: Tensor
    # Importance weights: 1 if all count the same, 0 for an environment whose steps are too old.
    weight_B: Tensor
    # Outputs of the policy that acted, as the algorithm's `behaviour` names them.
    behaviour: dict[str, Tensor] = field(default_factory=dict)
    # What the policy remembered before row 0, [B, ...] each, by the names of `Policy.state`.
    state: dict[str, Tensor] = field(default_factory=dict)
    # Of n-step transitions only: gamma^n, or 0 if they ended in a terminal state.
    discount_SB: Tensor | None = None
    # What an algorithm works out before its passes, [T, B] each, by names of its own.
    targets: dict[str, Tensor] = field(default_factory=dict)
    # Each row is a step on its own, which carries a transition: no row follows the last one.
    single_steps: bool = False

    @property
    def num_items(self) -> int:
        """B."""
        return self.weight_B.shape[0]

    @property
    def valid_TB(self) -> Tensor:
        """1 where step t carries a transition, 0 where it is an autoreset step."""
        if self.single_steps:
            return torch.ones_like(self.reward_SB)
        return self.first_SB[1:].logical_not().to(self.reward_SB.dtype)

    @property
    def counts_B(self) -> Tensor:
        """False for what has no part in anything: it is too old, or there is nothing in its place."""
        return self.weight_B > 0

    def at_steps(self, rows_SB: Tensor) -> Tensor:
        """Of [S, B, ...], the T rows in which actions were taken."""
        return rows_SB if self.single_steps else rows_SB[:-1]

    def as_single_steps(self) -> Batch:
        """All steps side by side, [1, T x B, ...], for policies to which the order of rows means nothing.

        What an environment weighs, each of its steps does; a step without a transition weighs nothing.
        """

        def flat(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: flat(tensor) for key, tensor in value.items()}
            return None if value is None else value[:num_steps].flatten(0, 1).unsqueeze(0)

        num_steps = len(self.reward_SB) - 1
        names = {item.name for item in fields(self)} - {"weight_B", "state", "single_steps"}
        rows = {name: flat(getattr(self, name)) for name in names}
        return Batch(**rows, weight_B=(self.valid_TB * self.weight_B).flatten(), single_steps=True)

    def take(self, index: Tensor | slice) -> Batch:
        """Some of the environments, as a batch of their own."""

        def part(name: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {key: part(name, tensor) for key, tensor in value.items()}
            if value is None or isinstance(value, bool):
                return value
            return value[index] if name in ("weight_B", "state") else value[:, index]

        return Batch(**{item.name: part(item.name, getattr(self, item.name)) for item in fields(self)})

    def since(self, row: int, state: dict[str, Tensor]) -> Batch:
        """From a row on; `state` is the one before that row."""

        def later(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: tensor[row:] for key, tensor in value.items()}
            return None if value is None else value[row:]

        names = {item.name for item in fields(self)} - {"weight_B", "state", "single_steps"}
        rows = {name: later(getattr(self, name)) for name in names}
        return Batch(**rows, weight_B=self.weight_B, state=state)
