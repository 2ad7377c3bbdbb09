"""Splits a group's unroll: one trajectory per environment for sequence tables, one per learner for its share.

Pure functions of plain NumPy, called by a group once per unroll. The parts may be views of the unroll's
columns: encode them before the next unroll is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.records import TERMINATED, TRUNCATED, Episode, Trajectory


def split_by_env(trajectory: Trajectory, first_stream: int, first_step: int) -> list[Trajectory]:
    """Columns [T+1, 1, ...] and the episodes of each environment; streams count on from `first_stream`."""
    # One copy with the environments in front makes the rows of each contiguous.
    by_env = [
        np.ascontiguousarray(column.swapaxes(0, 1))[:, :, np.newaxis]
        for column in trajectory.columns.values()
    ]
    episodes = _episodes_by_env(trajectory)
    return [
        Trajectory(
            dict(zip(trajectory.columns, columns, strict=True)),
            tuple(episodes.get(env, ())),
            first_stream + env,
            first_step,
        )
        for env, columns in enumerate(zip(*by_env, strict=True))
    ]


def split_by_share(trajectory: Trajectory, shares: Sequence[slice]) -> list[Trajectory]:
    """Columns [T+1, n, ...] of some environments each, with the episodes of these."""
    episodes = _episodes_by_env(trajectory)
    return [
        Trajectory(
            {name: column[:, share] for name, column in trajectory.columns.items()},
            tuple(episode for env in range(share.start, share.stop) for episode in episodes.get(env, ())),
        )
        for share in shares
    ]


def _episodes_by_env(trajectory: Trajectory) -> dict[int, list[Episode]]:
    """Episodes are listed in order of their end, by environment within a step: as the ends in the columns."""
    if not trajectory.episodes:
        return {}
    columns = trajectory.columns
    ends = np.nonzero(columns[TERMINATED][:-1] | columns[TRUNCATED][:-1])[1].tolist()
    episodes: dict[int, list[Episode]] = {}
    for env, episode in zip(ends, trajectory.episodes, strict=True):
        episodes.setdefault(env, []).append(episode)
    return episodes
