"""n-step returns of unrolls, in NumPy. Pure.

For whoever has no torch: transition tables make them on insert, actors make first priorities of them.
`shoal.algorithms.n_step` is the same for losses.

Legend: T transitions, S = T + 1 rows, E environments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.records import FIRST, TERMINATED, TRUNCATED, Columns


class NStep(NamedTuple):
    """Of each step: the discounted sum of rewards, how many, what the value at `row_TE` is worth, that row.

    Of a step without a transition: 0, 0, 0 and its own row.
    """

    reward_TE: np.ndarray
    num_steps_TE: np.ndarray
    discount_TE: np.ndarray
    row_TE: np.ndarray


def n_step(columns: Columns, reward_TE: np.ndarray, n: int, discount: float) -> NStep:
    """Step t sums up the rewards of at most `n` steps from t on, the i-th times discount^i.

    It ends early with the episode, or with the unroll, and leads to the row after its last step: after a
    truncation that is the true final one. What the value there is worth is discount^steps, 0 if terminated.
    """
    num_steps, num_envs = reward_TE.shape
    valid_TE = ~columns[FIRST][1:]
    terminated_TE = columns[TERMINATED][:-1].astype(np.bool_)
    # A step after which nothing more can be added: the next one is of another episode.
    is_last_TE = terminated_TE | columns[TRUNCATED][:-1].astype(np.bool_)
    # Where the data say so without an end before it, too: no return ever reaches into another episode.
    is_last_TE[:-1] |= ~valid_TE[1:]

    sum_TE = np.zeros((num_steps, num_envs))
    length_TE = np.zeros((num_steps, num_envs), np.int32)
    is_open_TE = valid_TE.copy()
    for i in range(min(n, num_steps)):
        # Steps t whose step t + i is in the unroll.
        still_TE = is_open_TE[: num_steps - i]
        sum_TE[: num_steps - i] += np.where(still_TE, discount**i * reward_TE[i:], 0.0)
        length_TE[: num_steps - i] += still_TE
        still_TE &= ~is_last_TE[i:]

    row_TE = np.arange(num_steps)[:, np.newaxis] + length_TE
    is_terminal_TE = np.take_along_axis(terminated_TE, np.maximum(row_TE - 1, 0), axis=0)
    worth_TE = np.where(is_terminal_TE | ~valid_TE, 0.0, float(discount) ** length_TE)
    return NStep(sum_TE, length_TE, worth_TE, row_TE)
