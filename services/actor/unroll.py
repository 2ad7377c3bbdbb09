"""Builds unrolls: T transitions in E environments as columns [T+1, E, ...].

Owned by one group and used on the event loop only; plain NumPy, no gRPC. Columns are allocated once:
a step writes one row, and what is acted on next is a view of the row written last.

Row t < T holds the observation, what the policy made of it, and what came of that. Of row T only the
observation and `first` count; it becomes row 0 of the next unroll. `first` at t+1 marks step t as an
autoreset, which is no transition. What the policy remembers is there once, as it was before row 0: inference
tells it with the first reply, but for the frames, which come from the unroll before.
"""

from __future__ import annotations

import numpy as np

from services.actor.frames import frames_before
from shoal.clients.inference import ActReply, ActWelcome
from shoal.envs.batch import EnvStep
from shoal.records import (
    FIRST,
    FRAMES,
    INITIAL,
    POLICY_VERSION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Columns,
    EnvSpec,
    Episode,
    Trajectory,
)


class UnrollBuilder:
    """One open unroll. `start`, then `add` per step; when `full`: `trajectory`, then `carry_over`."""

    def __init__(self, spec: EnvSpec, welcome: ActWelcome, unroll_length: int, num_envs: int) -> None:
        self.outputs, self.state = welcome.outputs, welcome.state
        self._length = unroll_length
        self._columns = _allocate(spec, welcome, unroll_length + 1, num_envs)
        self._observation_names = tuple(array.name for array in spec.observation)
        self._output_names = tuple(array.name for array in welcome.outputs)
        # The frames before row 0, by the observation that they are frames of.
        self._histories = {
            array.name.removeprefix(FRAMES): self._columns[f"{INITIAL}{array.name}"][0]
            for array in welcome.state
            if array.name.startswith(FRAMES)
        }
        # Views made once, so that a step makes none.
        self._rows = [
            {name: self._columns[name][t] for name in self._observation_names}
            for t in range(unroll_length + 1)
        ]
        self._episodes: list[Episode] = []
        self._t = 0

    @property
    def observation(self) -> Columns:
        """What to act on next, [E, ...] each; it stays as it is until the next `add` returns."""
        return self._rows[self._t]

    @property
    def first(self) -> np.ndarray:
        row: np.ndarray = self._columns[FIRST][self._t]
        return row

    @property
    def starting(self) -> bool:
        """Nothing has been added yet."""
        return self._t == 0

    @property
    def full(self) -> bool:
        return self._t == self._length

    @property
    def num_transitions(self) -> int:
        """In the open unroll so far."""
        first = self._columns[FIRST][1 : self._t + 1]
        return int(first.size - np.count_nonzero(first))

    @property
    def episodes(self) -> list[Episode]:
        """That ended in the open unroll so far."""
        return self._episodes

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Bytes of each column of a trajectory."""
        return tuple(column.nbytes for column in self._columns.values())

    @property
    def policy_version(self) -> int:
        """That chose the last actions."""
        return int(self._columns[POLICY_VERSION][self._t - 1, 0])

    @property
    def oldest_version(self) -> int:
        """That chose the first actions: on one stream versions never go back."""
        return int(self._columns[POLICY_VERSION][0, 0])

    def start(self, step: EnvStep) -> None:
        """Begins an unroll at what the environments show after a reset."""
        self._t = 0
        self._episodes.clear()
        self._write_shown(step)

    def begin_stream(self) -> None:
        """Row 0 is the first that a new stream shows: for the policy nothing was before it."""
        for name, history in self._histories.items():
            history[...] = self._columns[name][0][:, np.newaxis]

    def add(self, reply: ActReply, step: EnvStep, episodes: tuple[Episode, ...] = ()) -> None:
        """The policy's reply to `observation`, and what the environments made of it."""
        columns, t = self._columns, self._t
        if t == 0:
            for name, state in reply.state.items():
                columns[f"{INITIAL}{name}"][0] = state
        for name in self._output_names:
            columns[name][t] = reply.outputs[name]
        columns[POLICY_VERSION][t] = reply.policy_version
        columns[REWARD][t] = step.reward
        columns[TERMINATED][t] = step.terminated
        columns[TRUNCATED][t] = step.truncated
        self._episodes.extend(episodes)
        self._t = t + 1
        self._write_shown(step)

    def trajectory(self) -> Trajectory:
        """The full unroll, not copied: encode it before `carry_over`."""
        assert self.full, f"unroll has {self._t} of {self._length} steps"
        self._columns[POLICY_VERSION][-1] = self._columns[POLICY_VERSION][-2]
        return Trajectory(self._columns, tuple(self._episodes))

    def carry_over(self) -> None:
        """Begins the next unroll where this one stands; what an unfinished one holds is dropped."""
        if self._t:
            shown = slice(self._t + 1)
            for name, history in self._histories.items():
                history[...] = frames_before(history, self._columns[name][shown], self._columns[FIRST][shown])
            for name in (*self._observation_names, FIRST):
                self._columns[name][0] = self._columns[name][self._t]
        self._t = 0
        self._episodes.clear()

    def _write_shown(self, step: EnvStep) -> None:
        row = self._rows[self._t]
        for name in self._observation_names:
            row[name][...] = step.observation[name]
        self._columns[FIRST][self._t] = step.first


def _allocate(spec: EnvSpec, welcome: ActWelcome, num_rows: int, num_envs: int) -> Columns:
    # Zeros, because the last row of most columns is sent and never written.
    columns = {
        array.name: np.zeros((num_rows, num_envs, *array.shape), array.dtype)
        for array in (*spec.observation, *welcome.outputs)
    }
    for array in welcome.state:
        columns[f"{INITIAL}{array.name}"] = np.zeros((1, num_envs, *array.shape), array.dtype)
    for name, dtype in (
        (REWARD, "float32"),
        (TERMINATED, "bool"),
        (TRUNCATED, "bool"),
        (FIRST, "bool"),
        (POLICY_VERSION, "int64"),
    ):
        columns[name] = np.zeros((num_rows, num_envs), dtype)
    return columns
