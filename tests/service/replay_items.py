"""Real trajectories with all columns, for tests of replay tables of every kind."""

from __future__ import annotations

import numpy as np

from shoal.records import (
    ACTION,
    FIRST,
    LOG_PROB,
    OBSERVATION,
    POLICY_VERSION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    ArraySpec,
    Trajectory,
)
from shoal.wire import encode_trajectory

NUM_ACTIONS = 4
STEPS = 2
DECLARED = (ArraySpec(OBSERVATION, "float32", (3,)), ArraySpec(ACTION, "int64", (), NUM_ACTIONS))


def trajectory(
    number: int = 0,
    *,
    steps: int = STEPS,
    envs: int = 1,
    width: int = 3,
    stream: int = 0,
    first_step: int = 0,
) -> Trajectory:
    """An unroll in the middle of an episode; every observation and reward holds `number`."""
    leading = (steps + 1, envs)
    return Trajectory(
        {
            OBSERVATION: np.full((*leading, width), number, np.float32),
            ACTION: np.full(leading, number % NUM_ACTIONS, np.int64),
            LOG_PROB: np.full(leading, -1.0, np.float32),
            POLICY_VERSION: np.zeros(leading, np.int64),
            REWARD: np.full(leading, number, np.float32),
            TERMINATED: np.zeros(leading, np.bool_),
            TRUNCATED: np.zeros(leading, np.bool_),
            FIRST: np.zeros(leading, np.bool_),
        },
        stream=stream,
        first_step=first_step,
    )


def encoded(number: int = 0, *, steps: int = STEPS, envs: int = 1, width: int = 3) -> bytes:
    return encode_trajectory(trajectory(number, steps=steps, envs=envs, width=width))


def changed(base: Trajectory, **columns: np.ndarray | None) -> bytes:
    """The trajectory with some columns replaced, added or, if None, left out."""
    merged = base.columns | columns
    kept = {name: array for name, array in merged.items() if array is not None}
    return encode_trajectory(Trajectory(kept, base.episodes, base.stream, base.first_step))
