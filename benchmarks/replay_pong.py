"""Pong as ALE plays it under random actions: recorded once into a file, then cut into trajectories.

The replay benchmark's frames. Needs `ale_py` (the extra `atari`) to record; a recording that is there is used
without it. The file holds plain arrays, `[steps + 1, envs, ...]`, as a vector env gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.console import Progress
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

NUM_ENVS = 8
NUM_ACTIONS = 6


@dataclass(frozen=True)
class Recording:
    """Columns of NUM_ENVS environments over time. `real`: from ALE, not made up."""

    columns: Columns
    real: bool

    @property
    def num_transitions(self) -> int:
        first = self.columns[FIRST]
        return int(first[1:].size - np.count_nonzero(first[1:]))

    def describe(self) -> str:
        if not self.real:
            return "made-up frames that look like Pong (ale_py is not installed: pip install 'shoal[atari]')"
        return f"{self.num_transitions:,} Pong transitions recorded from ALE with random actions"

    def trajectories(self, unroll_length: int) -> Iterator[Trajectory]:
        """One env each, one after another along each env: row T of one is row 0 of the next."""
        num_steps, num_envs = self.columns[FIRST].shape
        for begin in range(0, num_steps - unroll_length, unroll_length):
            for env in range(num_envs):
                rows = slice(begin, begin + unroll_length + 1)
                columns = {name: column[rows, env : env + 1] for name, column in self.columns.items()}
                yield Trajectory(columns, stream=env, first_step=begin)


def load_or_record(cache: Path, num_transitions: int, progress: Progress) -> Recording:
    """At least `num_transitions` real ones, from the cache or from ALE; made-up ones without `ale_py`."""
    path = cache / "pong.npz"
    if path.is_file():
        with np.load(path, allow_pickle=False) as file:
            recording = Recording({name: file[name] for name in file.files}, real=True)
        if recording.num_transitions >= num_transitions or find_spec("ale_py") is None:
            return recording
    if find_spec("ale_py") is None:
        return Recording(made_up(num_transitions // NUM_ENVS + 1), real=False)
    # A few steps are lost to autoresets.
    columns = record(int(num_transitions / NUM_ENVS * 1.01) + 2, progress)
    cache.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, **columns)
    temporary.replace(path)
    return Recording(columns, real=True)


def record(num_steps: int, progress: Progress) -> Columns:
    """Frame skip 4, gray, 84x84, one frame per step; every action equally likely."""
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", num_envs=NUM_ENVS, stack_num=1)
    columns = _empty(num_steps)
    rng = np.random.default_rng(1)
    frames, _ = env.reset(seed=1)
    first = np.ones(NUM_ENVS, np.bool_)
    for t in range(num_steps + 1):
        columns[OBSERVATION][t], columns[FIRST][t] = frames[:, 0], first
        columns[ACTION][t] = rng.integers(NUM_ACTIONS, size=NUM_ENVS)
        # Of the last row only the observation counts.
        frames, reward, terminated, truncated, _ = env.step(columns[ACTION][t])
        columns[REWARD][t], columns[TERMINATED][t], columns[TRUNCATED][t] = reward, terminated, truncated
        # Next-step autoreset: the step after the end of an episode only starts the next one.
        first = columns[TERMINATED][t] | columns[TRUNCATED][t]
        progress.show("recording Pong from ALE", t, num_steps)
    env.close()
    return columns


def made_up(num_steps: int) -> Columns:
    """A still court with two paddles and a ball."""
    columns = _empty(num_steps)
    columns[OBSERVATION][:] = 87
    columns[OBSERVATION][:, :, :14] = 52
    columns[FIRST][0] = True
    for t in range(num_steps + 1):
        for env in range(NUM_ENVS):
            frame, phase = columns[OBSERVATION][t, env], t + 11 * env
            for x, y, height in (
                (8, phase % 60, 8),
                (75, (3 * phase) % 60, 8),
                (10 + phase % 64, phase % 66, 2),
            ):
                frame[14 + y : 14 + y + height, x : x + 2] = 200
    return columns


def _empty(num_steps: int) -> Columns:
    leading = (num_steps + 1, NUM_ENVS)
    return {
        OBSERVATION: np.zeros((*leading, 84, 84), np.uint8),
        ACTION: np.zeros(leading, np.int64),
        REWARD: np.zeros(leading, np.float32),
        TERMINATED: np.zeros(leading, np.bool_),
        TRUNCATED: np.zeros(leading, np.bool_),
        FIRST: np.zeros(leading, np.bool_),
        LOG_PROB: np.full(leading, -np.log(NUM_ACTIONS), np.float32),
        POLICY_VERSION: np.zeros(leading, np.int64),
    }
