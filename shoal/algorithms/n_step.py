"""n-step returns of unrolls, and of transitions that a table has summed up already. Pure, any device.

The same as `shoal.n_step` in NumPy, which transition tables make on insert. An n-step return ends early with
the episode or the unroll. The row it bootstraps from is the one after its last step: after a truncation the
true last observation of the episode, after a termination one whose value is worth nothing.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.batch import Batch


class NStep(NamedTuple):
    """Of each step: the discounted sum of rewards, what the value at `row_TB` (of S) is worth, and that row.

    Of a step without a transition: 0, 0 and its own row.
    """

    reward_TB: Tensor
    discount_TB: Tensor
    row_TB: Tensor

    def target(self, value_SB: Tensor) -> Tensor:
        """R + gamma^n V(x_t+n), [T, B], of the values of all rows."""
        return self.reward_TB + self.discount_TB * value_SB.gather(0, self.row_TB)


def n_step(batch: Batch, n: int, discount: float) -> NStep:
    """`n` and `discount` are of unrolls; transitions of a table bring their own."""
    if batch.discount_SB is not None:
        next_row_TB = torch.ones_like(batch.first_SB[1:], dtype=torch.int64)
        return NStep(batch.reward_SB[:-1], batch.discount_SB[:-1], next_row_TB)
    return _of_unrolls(batch, n, discount)


def _of_unrolls(batch: Batch, n: int, discount: float) -> NStep:
    reward_TB = batch.reward_SB[:-1]
    num_steps = len(reward_TB)
    valid_TB = batch.first_SB[1:].logical_not()
    terminated_TB = batch.terminated_SB[:-1]
    # Steps that others can be added to: the episode goes on, and the step after is one of its own.
    goes_on_TB = (terminated_TB | batch.truncated_SB[:-1]).logical_not()
    goes_on_TB[:-1] &= valid_TB[1:]

    sum_TB = torch.zeros_like(reward_TB)
    length_TB = torch.zeros_like(reward_TB, dtype=torch.int64)
    is_open_TB = valid_TB.clone()
    for i in range(min(n, num_steps)):
        # Of all steps t with t + i in the unroll; what is not summed up may be anything, NaN too.
        still_TB = is_open_TB[: num_steps - i]
        sum_TB[: num_steps - i] += torch.where(still_TB, discount**i * reward_TB[i:], 0.0)
        length_TB[: num_steps - i] += still_TB
        still_TB &= goes_on_TB[i:]

    row_TB = torch.arange(num_steps, device=reward_TB.device).unsqueeze(1) + length_TB
    is_terminal_TB = terminated_TB.gather(0, (row_TB - 1).clamp(min=0))
    is_worthless_TB = is_terminal_TB | valid_TB.logical_not()
    worth_TB = torch.pow(discount, length_TB.to(reward_TB.dtype)).masked_fill(is_worthless_TB, 0.0)
    return NStep(sum_TB, worth_TB, row_TB)
