"""Real serialised trajectories, small ones, for tests of the replay."""

from __future__ import annotations

import numpy as np

from shoal.records import ACTION, FIRST, OBSERVATION, REWARD, Trajectory
from shoal.wire import encode_trajectory


def payload(number: int = 0, *, rows: int = 3, envs: int = 2, width: int = 4) -> bytes:
    """A trajectory whose observations all hold `number`; incompressible enough to grow with its size."""
    noise = np.random.default_rng(number).random((rows, envs, width)).astype(np.float32)
    return encode_trajectory(
        Trajectory(
            {
                OBSERVATION: noise,
                ACTION: np.full((rows, envs), number, np.int64),
                REWARD: np.zeros((rows, envs), np.float32),
                FIRST: np.zeros((rows, envs), np.bool_),
            }
        )
    )
