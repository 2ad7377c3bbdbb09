"""Targets of a critic: n-step returns and what the rows that they lead to are worth. Pure, any device.

Networks without memory are asked about those rows alone; of one with a memory all rows are unrolled.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.algorithms.n_step import NStep


class Rows(NamedTuple):
    """What policies take, [rows, B, ...] each; `state` is the one before the first row."""

    observation: dict[str, Tensor]
    first_SB: Tensor
    state: dict[str, Tensor]


def rows_of_steps(batch: Batch) -> Rows:
    """The T rows in which the batch's actions were taken."""
    observation = {name: tensor[:-1] for name, tensor in batch.observation.items()}
    return Rows(observation, batch.first_SB[:-1], batch.state)


def bootstrapped(batch: Batch, steps: NStep, value_of: Callable[[Rows], Tensor]) -> Tensor:
    """R + gamma^n V(x_t+n), [T, B]; `value_of` gives the values of the rows it is asked about."""
    if batch.state:
        return steps.target(value_of(Rows(batch.observation, batch.first_SB, batch.state)))
    return steps.reward_TB + steps.discount_TB * value_of(_rows_at(batch, steps.row_TB))


def _rows_at(batch: Batch, row_TB: Tensor) -> Rows:
    """One for each step, for networks to which the order of rows means nothing."""
    # As many flags as rows; nothing is remembered that they could end.
    flags_TB = batch.first_SB[1:]
    if len(row_TB) == 1:
        return Rows({name: tensor[1:] for name, tensor in batch.observation.items()}, flags_TB, {})
    num_envs = row_TB.shape[1]
    index = (row_TB * num_envs + torch.arange(num_envs, device=row_TB.device)).flatten()
    observation = {
        name: tensor.flatten(0, 1).index_select(0, index).reshape(*row_TB.shape, *tensor.shape[2:])
        for name, tensor in batch.observation.items()
    }
    return Rows(observation, flags_TB, {})
