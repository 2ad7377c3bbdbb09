"""Real trajectories, small ones, as objects, as bytes and as insertions, for tests of the replay."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.replay.tables import Insertion
from shoal.records import ACTION, FIRST, OBSERVATION, REWARD, TERMINATED, TRUNCATED, Life, Trajectory
from shoal.wire import encode_trajectory

LIFE = Life("actor", "run")


def trajectory(
    number: int = 0, *, rows: int = 3, envs: int = 2, width: int = 4, stream: int = 0, first_step: int = 0
) -> Trajectory:
    """Its actions all hold `number`; incompressible enough to grow with its size."""
    noise = np.random.default_rng(number).random((rows, envs, width)).astype(np.float32)
    return Trajectory(
        {
            OBSERVATION: noise,
            ACTION: np.full((rows, envs), number, np.int64),
            REWARD: np.zeros((rows, envs), np.float32),
            TERMINATED: np.zeros((rows, envs), np.bool_),
            TRUNCATED: np.zeros((rows, envs), np.bool_),
            FIRST: np.zeros((rows, envs), np.bool_),
        },
        stream=stream,
        first_step=first_step,
    )


def payload(number: int = 0, **options: Any) -> bytes:
    """A serialised `trajectory`."""
    return encode_trajectory(trajectory(number, **options))


def insertion(
    sequence: int, *trajectories: Trajectory, priorities: list[float] | None = None, life: Life = LIFE
) -> Insertion:
    """What a shard makes of an append."""
    return Insertion(
        life,
        sequence,
        tuple(map(encode_trajectory, trajectories)),
        trajectories,
        None if priorities is None else np.array(priorities, np.float32),
    )
