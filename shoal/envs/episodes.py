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
        # The version that chose the episode's first action, and the environments whose next action is one.
        self._first_versions = np.full(num_envs, -1, np.int64)
        self._beginning: np.ndarray | None = np.ones(num_envs, np.bool_)
        # Made since the start, by each environment.
        self.num_steps = 0

    def add(self, step: EnvStep, policy_version: int = -1) -> tuple[Episode, ...]:
        """Episodes that ended at this step, by environment. `policy_version` chose the step's actions."""
        if self._beginning is not None:
            self._first_versions[self._beginning] = policy_version
            self._beginning = None
        self.num_steps += 1
        self._returns += step.reward
        if step.first.any():
            self._returns[step.first] = 0.0
            self._starts[step.first] = self.num_steps
            self._beginning = step.first.copy()
        ended = np.flatnonzero(step.done)
        if not ended.size:
            return ()
        returns = self._returns[ended].tolist()
        lengths = (self.num_steps - self._starts[ended]).tolist()
        return tuple(map(Episode, returns, lengths, self._first_versions[ended].tolist()))
