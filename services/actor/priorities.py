"""First priorities of what an actor hands over, from the values that its policy gave (Horgan et al. 2018).

Without them everything new would have the highest priority until the learner has seen it. The errors are
those of the learner's loss, with the values of the policy that acted instead of the target's. What the policy
makes of the last row is known only with the next unroll: the best value of the row before stands for it.

A sequence has the key of its last unroll: its priority is made of the errors of all its unrolls, which are
remembered here. Owned by one group, on the event loop; plain NumPy.

Legend: T transitions, S = T + 1 rows, E environments.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from shoal.algorithms.settings import AlgorithmSection
from shoal.config.tables import AnyTable, SampledTable, SequenceTable
from shoal.n_step import n_step
from shoal.records import FIRST, Q_MAX, Q_VALUE, REWARD, Columns

# As the learner's: a step whose error is 0 by chance is still sampled now and then.
_LEAST_PRIORITY = 1e-6
_MOST_PRIORITY = float(np.finfo(np.float32).max)


class FirstPriorities:
    """`of` each unroll in its order: [T, E] for a transition table, [E] for a sequence table."""

    def __init__(self, algorithm: AlgorithmSection, table: SampledTable) -> None:
        made_of = algorithm.initial_priority
        assert made_of is not None, "asked before"
        self._algorithm = algorithm
        self._made_of = made_of
        unrolls = table.unrolls if isinstance(table, SequenceTable) else None
        # Of the unrolls of the sequence that the newest one ends; NaN for steps without a transition.
        self._errors: deque[np.ndarray] | None = None if unrolls is None else deque(maxlen=unrolls)

    def of(self, columns: Columns) -> np.ndarray:
        # What is not finite is the shard's to refuse: it says which column it is.
        with np.errstate(all="ignore"):
            error_TE = np.nan_to_num(np.abs(self._errors_of(columns)), nan=_MOST_PRIORITY)
        error_TE = np.where(columns[FIRST][1:], np.nan, error_TE.clip(_LEAST_PRIORITY, _MOST_PRIORITY))
        if self._errors is None:
            return np.nan_to_num(error_TE)
        self._errors.append(error_TE)
        return self._mixed(self._errors)

    def _errors_of(self, columns: Columns) -> np.ndarray:
        """y - Q of every step."""
        made_of, epsilon = self._made_of, self._made_of.rescale_epsilon
        reward_TE = conditioned(columns[REWARD][:-1].astype(np.float64), self._algorithm)
        steps = n_step(columns, reward_TE, made_of.n_step, made_of.discount)
        value_SE = unscaled(columns[Q_MAX].astype(np.float64), epsilon)
        value_SE[-1] = value_SE[-2]
        bootstrap_TE = np.take_along_axis(value_SE, steps.row_TE, axis=0)
        target_TE = rescaled(steps.reward_TE + steps.discount_TE * bootstrap_TE, epsilon)
        error_TE: np.ndarray = target_TE - columns[Q_VALUE][:-1]
        return error_TE

    def _mixed(self, errors: deque[np.ndarray]) -> np.ndarray:
        """Of the sequence that the newest unroll ends. No sequence ends before there are enough of them."""
        is_whole = len(errors) == errors.maxlen
        error_TE = np.concatenate(errors)[self._made_of.burn_in if is_whole else 0 :]
        has_step_TE = ~np.isnan(error_TE)
        error_TE = np.where(has_step_TE, error_TE, 0.0)
        mean_E = error_TE.sum(0) / np.maximum(has_step_TE.sum(0), 1)
        share = self._made_of.max_share
        mixed_E: np.ndarray = share * error_TE.max(0) + (1.0 - share) * mean_E
        return mixed_E


def first_priorities(algorithm: AlgorithmSection, table: AnyTable) -> FirstPriorities | None:
    """None: the table is not sampled by priority, or the highest one that it has seen is as good a guess."""
    if algorithm.initial_priority is None or not isinstance(table, SampledTable) or table.alpha == 0:
        return None
    # Only the learner knows what rewards are divided by then.
    return None if algorithm.normalise_returns else FirstPriorities(algorithm, table)


def conditioned(reward: np.ndarray, algorithm: AlgorithmSection) -> np.ndarray:
    """As `shoal.algorithms.rewards`."""
    if algorithm.reward_symlog:
        reward = np.sign(reward) * np.log1p(np.abs(reward))
    if algorithm.reward_clip is not None:
        reward = reward.clip(-algorithm.reward_clip, algorithm.reward_clip)
    return reward * algorithm.reward_scale


def rescaled(values: np.ndarray, epsilon: float) -> np.ndarray:
    """As in `shoal.algorithms.rescaling`."""
    if epsilon == 0:
        return values
    small: np.ndarray = np.sign(values) * (np.sqrt(np.abs(values) + 1.0) - 1.0) + epsilon * values
    return small


def unscaled(values: np.ndarray, epsilon: float) -> np.ndarray:
    """As in `shoal.algorithms.rescaling`."""
    if epsilon == 0:
        return values
    size = np.abs(values)
    linear = 1.0 + 2.0 * epsilon
    root = 2.0 * size / (linear + np.sqrt(linear**2 + 4.0 * epsilon * size))
    large: np.ndarray = np.sign(values) * root * (root + 2.0)
    return large
