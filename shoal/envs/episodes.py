"""Returns and lengths of the episodes of a batch of environments.

Used by whoever steps them: actors, `shoal eval`, `shoal envs check`. One thread at a time. A step costs one
addition over E environments, however many episodes end later: starts are remembered as step numbers, not
counted step by step.
"""

from __future__ import annotations

import numpy as np

from shoal.envs.batch import EnvStep
from shoal.records import Episode


class EpisodeTracker:
    """Feed it every step after the reset; it answers with the episodes that ended there."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        # Number of the step that showed the episode's first observation.
        self._starts = np.zeros(num_envs, np.int64)
        # Made since the start, by each environment.
        self.num_steps = 0

    def add(self, step: EnvStep) -> tuple[Episode, ...]:
        """Episodes that ended at this step, by environment."""
        self.num_steps += 1
        self._returns += step.reward
        if step.first.any():
            self._returns[step.first] = 0.0
            self._starts[step.first] = self.num_steps
        ended = np.flatnonzero(step.done)
        if not ended.size:
            return ()
        returns = self._returns[ended].tolist()
        lengths = (self.num_steps - self._starts[ended]).tolist()
        return tuple(map(Episode, returns, lengths))
