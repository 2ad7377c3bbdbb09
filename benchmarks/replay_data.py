"""What the replay benchmark inserts besides Pong: real CartPole unrolls, and items of a given size."""

from __future__ import annotations

import gymnasium as gym
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
    Columns,
    Trajectory,
)

SMALL_UNROLL = 32


def cartpole(num_items: int, unroll_length: int = SMALL_UNROLL) -> list[Trajectory]:
    """One env each, random actions, with everything that an actor sends."""
    env = gym.make_vec("CartPole-v1", num_envs=num_items, vectorization_mode="vector_entry_point")
    columns = _columns(unroll_length, num_items, np.zeros((unroll_length + 1, num_items, 4), np.float32))
    columns[LOG_PROB][:] = np.log(0.5)
    rng = np.random.default_rng(1)
    observation, _ = env.reset(seed=1)
    first = np.ones(num_items, np.bool_)
    for t in range(unroll_length + 1):
        columns[OBSERVATION][t], columns[FIRST][t] = observation, first
        columns[ACTION][t] = rng.integers(2, size=num_items)
        observation, reward, terminated, truncated, _ = env.step(columns[ACTION][t])
        columns[REWARD][t], columns[TERMINATED][t], columns[TRUNCATED][t] = reward, terminated, truncated
        # Next-step autoreset: the step after the end of an episode only starts the next one.
        first = terminated | truncated
    env.close()
    return [
        Trajectory({name: column[:, i : i + 1].copy() for name, column in columns.items()}, stream=i)
        for i in range(num_items)
    ]


def sized(num_items: int, num_bytes: int) -> list[Trajectory]:
    """Items of about `num_bytes`, compressed or not: their observation is noise."""
    rng = np.random.default_rng(1)
    shape = (2, 1, max(num_bytes // 2, 1))
    return [
        Trajectory(_columns(1, 1, rng.integers(256, size=shape, dtype=np.uint8)), stream=i)
        for i in range(num_items)
    ]


def consecutive(trajectory: Trajectory, unroll_length: int) -> list[Trajectory]:
    """A long unroll cut into shorter ones: row T of each is row 0 of the next."""
    return [
        Trajectory(
            {name: c[begin : begin + unroll_length + 1] for name, c in trajectory.columns.items()},
            stream=trajectory.stream,
            first_step=trajectory.first_step + begin,
        )
        for begin in range(0, trajectory.unroll_length - unroll_length + 1, unroll_length)
    ]


def raw_bytes(trajectory: Trajectory) -> int:
    """What the arrays take when decoded."""
    return sum(column.nbytes for column in trajectory.columns.values())


def _columns(unroll_length: int, num_envs: int, observation: np.ndarray) -> Columns:
    leading = (unroll_length + 1, num_envs)
    return {
        OBSERVATION: observation,
        ACTION: np.zeros(leading, np.int64),
        REWARD: np.zeros(leading, np.float32),
        TERMINATED: np.zeros(leading, np.bool_),
        TRUNCATED: np.zeros(leading, np.bool_),
        FIRST: np.zeros(leading, np.bool_),
        LOG_PROB: np.zeros(leading, np.float32),
        POLICY_VERSION: np.zeros(leading, np.int64),
    }
