"""Makes n-step transitions of an unroll, as rows in columns: what a transition table stores.

A pure function; called on insert, on the event loop. See `Trajectory` for the meaning of an unroll's steps
and `Transitions` for that of the columns.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import InvalidArgumentError
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

    Row (t, e) sums up the rewards of at most `n` steps from t on, the i-th times discount^i. It ends early
    with the episode, or with the unroll, and leads to the observation after its last step: after a
    truncation that is the true final one. Its `discount` is what the value there is worth: discount^steps, 0
    if terminated.

    `priorities` has one entry per step and environment, [T, E] or flat.
    """
    columns = trajectory.columns
    _check_columns(columns)
    num_steps, num_envs = trajectory.unroll_length, trajectory.num_envs
    is_transition = ~columns[FIRST][1:]
    terminated = columns[TERMINATED][:-1].astype(np.bool_)
    # A step after which nothing more can be added: the next one is of another episode.
    is_last = terminated | columns[TRUNCATED][:-1].astype(np.bool_)
    # Where the data say so without an end before it, too: no row ever reaches into another episode.
    is_last[:-1] |= ~is_transition[1:]

    reward = columns[REWARD][:-1].astype(np.float64)
    returns = np.zeros((num_steps, num_envs))
    steps = np.zeros((num_steps, num_envs), np.int32)
    is_open = np.ones((num_steps, num_envs), np.bool_)
    for i in range(min(n, num_steps)):
        # Rows t whose step t + i is in the unroll.
        still = is_open[: num_steps - i]
        returns[: num_steps - i] += np.where(still, discount**i * reward[i:], 0.0)
        steps[: num_steps - i] += still
        still &= ~is_last[i:]

    t, env = np.nonzero(is_transition)
    steps_of_row = steps[t, env]
    end = t + steps_of_row
    worth = np.where(terminated[end - 1, env], 0.0, float(discount) ** steps_of_row)
    # Whether an end is the row's own or that of a later step in it is said by `discount` alone.
    rows = {
        name: array[t, env] for name, array in columns.items() if name not in (FIRST, TERMINATED, TRUNCATED)
    }
    rows |= {f"{NEXT}{name}": array[end, env] for name, array in columns.items() if _is_observation(name)}
    # Integers do not hold a discounted sum. Large but finite rewards stay finite.
    dtype = np.result_type(columns[REWARD].dtype, np.float32)
    rows[REWARD] = returns[t, env].clip(np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)
    rows[DISCOUNT] = worth.astype(np.float32)
    rows[NUM_STEPS] = steps_of_row
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
