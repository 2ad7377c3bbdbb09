"""Between the arrays of a caller and the trajectories that a table takes and gives. Pure functions.

Used by `shoal.clients.replay`, in the caller's thread: what is compressed and decompressed here keeps no
event loop waiting. Shapes: T transitions per unroll, E environments, B items in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from shoal.errors import InvalidArgumentError
from shoal.records import FIRST, INITIAL, Columns, Episode, Trajectory


def as_unroll(columns: Mapping[str, ArrayLike]) -> Columns:
    """Every column as [T+1, E, ...]; [T+1, ...] is one environment. `first` says which of the two it is.

    Columns named `initial.` and more, states of a policy before the first row, have one row.
    """
    arrays = {name: _as_array(name, column) for name, column in columns.items()}
    first = arrays.get(FIRST)
    if first is None or first.dtype != np.bool_ or first.ndim not in (1, 2):
        received = "missing" if first is None else f"{first.dtype}{list(first.shape)}"
        raise InvalidArgumentError(
            f"column {FIRST!r} is {received}: give bool[T+1] for one environment, bool[T+1, E] for several, "
            "True in each row that begins an episode"
        )
    leading = first.shape
    for name, array in arrays.items():
        is_state = name.startswith(INITIAL)
        if array.shape[: len(leading)] != ((1, *leading[1:]) if is_state else leading):
            raise InvalidArgumentError(
                f"column {name!r} has shape {list(array.shape)}, column {FIRST!r} has {list(leading)}: "
                f"{'a state has one row' if is_state else 'all columns begin with the same axes'}"
            )
    if len(leading) == 1:
        arrays = {name: array[:, np.newaxis] for name, array in arrays.items()}
    if arrays[FIRST].shape[0] < 2 or arrays[FIRST].shape[1] < 1:
        raise InvalidArgumentError(
            f"unroll of shape {list(leading)}: at least two rows and one environment are needed"
        )
    return arrays


def _as_array(name: str, column: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(column)
    except ValueError as error:
        raise InvalidArgumentError(f"column {name!r} is no array: {error}") from None


def as_priorities(
    kind: str, priorities: ArrayLike | None, num_steps: int, num_envs: int
) -> np.ndarray | None:
    """As a table of this kind takes them for one unroll. Raises InvalidArgumentError for other shapes."""
    if priorities is None:
        return None
    if kind == "queue":
        raise InvalidArgumentError("priorities for a queue, which has none: leave them out")
    shapes: list[tuple[int, ...]] = [(num_steps, num_envs)] if kind == "transition" else [(num_envs,)]
    if num_envs == 1:
        shapes.append(shapes[0][:-1])
    given = as_numbers(priorities)
    if given.shape not in shapes:
        raise InvalidArgumentError(
            f"priorities of shape {list(given.shape)} for {num_steps} steps of {num_envs} environments: "
            f"a {kind} table takes {' or '.join(str(list(shape)) for shape in shapes)}"
        )
    return given


def as_numbers(priorities: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(priorities, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"priorities are no array of numbers: {error}") from None


def as_trajectories(
    kind: str, columns: Columns, episodes: Sequence[Episode], first_step: int
) -> list[Trajectory]:
    """An unroll as a table of this kind takes it: a sequence table has each environment for itself."""
    num_rows, num_envs = columns[FIRST].shape
    steps = num_rows - 1
    if len(episodes) > steps * num_envs:
        raise InvalidArgumentError(
            f"{len(episodes)} episodes for {steps} steps of {num_envs} environments: "
            "give those that ended in this unroll"
        )
    if kind != "sequence":
        return [Trajectory(columns, tuple(episodes))]
    # Which environment an episode was in is not known; a trajectory holds at most one for each step.
    return [
        Trajectory(
            {name: array[:, env : env + 1] for name, array in columns.items()},
            tuple(episodes[env * steps : (env + 1) * steps]),
            stream=env,
            first_step=first_step,
        )
        for env in range(num_envs)
    ]


def stack_trajectories(trajectories: Sequence[Trajectory]) -> Columns:
    """Side by side, as [T+1, B, ...]. Raises InvalidArgumentError if they are not of one length and kind."""
    lengths = {trajectory.unroll_length for trajectory in trajectories}
    kinds = {frozenset(map(_kind_of, trajectory.columns.items())) for trajectory in trajectories}
    if len(lengths) > 1 or len(kinds) > 1:
        raise InvalidArgumentError(
            f"trajectories of {sorted(lengths)} steps with columns {sorted(map(sorted, kinds))} make no "
            "batch: take them one by one, from `trajectories`"
        )
    return {
        name: np.concatenate([trajectory.columns[name] for trajectory in trajectories], axis=1)
        for name in trajectories[0].columns
    }


def _kind_of(column: tuple[str, np.ndarray]) -> str:
    name, array = column
    return f"{name} {array.dtype}{list(array.shape[2:])}"
