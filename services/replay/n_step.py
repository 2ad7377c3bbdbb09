"""Makes n-step transitions of an unroll, as rows in columns: what a transition table stores.

A pure function; called on insert, on the event loop. See `Trajectory` for the meaning of an unroll's steps
and `Transitions` for that of the columns.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import InvalidArgumentError
from shoal.n_step import n_step
from shoal.records import (
    ACTION_MASK,
    DISCOUNT,
    FIRST,
    INITIAL,
    NEXT,
    NUM_STEPS,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Columns,
    Trajectory,
)


def build_transitions(
    trajectory: Trajectory, n: int, discount: float, priorities: np.ndarray | None = None
) -> tuple[Columns, np.ndarray | None]:
    """A row per step that carries a transition, ordered by step, then environment; and the rows' priorities.

    Row (t, e) is the n-step return of that step, and the observation that it leads to.

    `priorities` has one entry per step and environment, [T, E] or flat.
    """
    columns = trajectory.columns
    _check_columns(columns)
    num_steps, num_envs = trajectory.unroll_length, trajectory.num_envs
    returns, steps, worth, row = n_step(columns, columns[REWARD][:-1].astype(np.float64), n, discount)
    t, env = np.nonzero(~columns[FIRST][1:])
    end = row[t, env]
    # Whether an end is the row's own or that of a later step in it is said by `discount` alone.
    rows = {
        name: array[t, env] for name, array in columns.items() if name not in (FIRST, TERMINATED, TRUNCATED)
    }
    rows |= {f"{NEXT}{name}": array[end, env] for name, array in columns.items() if _is_observation(name)}
    # Integers do not hold a discounted sum. Large but finite rewards stay finite.
    dtype = np.result_type(columns[REWARD].dtype, np.float32)
    rows[REWARD] = returns[t, env].clip(np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)
    rows[DISCOUNT] = worth[t, env].astype(np.float32)
    rows[NUM_STEPS] = steps[t, env]
    if priorities is None:
        return rows, None
    if priorities.size != num_steps * num_envs:
        raise InvalidArgumentError(
            f"{priorities.size} priorities for an unroll of {num_steps} steps in {num_envs} environments: "
            f"{num_steps * num_envs} are needed"
        )
    return rows, priorities.reshape(num_steps, num_envs)[t, env].astype(np.float64)


def _is_observation(name: str) -> bool:
    # Which actions are allowed is seen as the rest is: whoever values the next observation needs it there.
    return name in (OBSERVATION, ACTION_MASK) or name.startswith(f"{OBSERVATION}.")


def _check_columns(columns: Columns) -> None:
    missing = [name for name in (REWARD, TERMINATED, TRUNCATED) if name not in columns]
    if missing or not any(map(_is_observation, columns)):
        raise InvalidArgumentError(
            f"transitions need the columns {REWARD}, {TERMINATED}, {TRUNCATED} and {OBSERVATION}; "
            f"received only {', '.join(columns)}"
        )
    if states := [name for name in columns if name.startswith(INITIAL)]:
        raise InvalidArgumentError(
            f"columns {', '.join(states)} are the policy's state before the unroll, which single transitions "
            "do not have: use a table of kind sequence"
        )
    for name in (REWARD, TERMINATED, TRUNCATED):
        if columns[name].ndim != 2:
            raise InvalidArgumentError(
                f"column {name} is {columns[name].dtype}{list(columns[name].shape)}: "
                "a transition needs one number per step and environment, [T+1, E]"
            )
    taken = {DISCOUNT, NUM_STEPS, *(f"{NEXT}{name}" for name in columns if _is_observation(name))}
    if clash := taken.intersection(columns):
        raise InvalidArgumentError(f"columns {sorted(clash)} are made by the transition table: rename them")
