"""Importance weights of prioritised samples, and the schedule of their exponent.

Pure functions, after Schaul et al., "Prioritized Experience Replay" (2016), section 3.4. Called by
`shoal.clients.replay_draw`; anyone may call `anneal`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.errors import UserError

# A number, or a function of the number of batches before this one.
Beta = float | Callable[[int], float]


def importance_weights(probabilities: np.ndarray, num_items: int, beta: float) -> np.ndarray:
    """w = (N * P) ^ -beta, divided by the largest of the batch.

    `probabilities`: of each sampled item, over all N items that one draw could have given. The result
    is in (0, 1]; beta 1 corrects the bias of prioritised sampling fully, 0 not at all.
    """
    # N cancels out; it stays so that the numbers before the division are the paper's.
    weights: np.ndarray = (num_items * probabilities) ** -beta
    weights /= weights.max()
    return weights


def anneal(start: float, end: float, num_batches: int) -> Callable[[int], float]:
    """Beta that goes in a straight line from `start` to `end` over `num_batches` batches and then stays."""
    if num_batches < 1:
        raise UserError(f"anneal over {num_batches} batches: at least 1 is needed")

    def beta(num_before: int) -> float:
        return start + (end - start) * min(num_before / num_batches, 1.0)

    return beta


def beta_of(beta: Beta, num_before: int) -> float:
    """The exponent of one batch. Raises UserError if it is none."""
    value = float(beta(num_before) if callable(beta) else beta)
    if not 0.0 <= value <= 1.0:
        raise UserError(f"beta is {value} for batch {num_before}: it must be from 0 to 1")
    return value
