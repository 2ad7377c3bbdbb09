"""What is wrong with what an environment did, in words that go on from "environment 'X' ...".

Used by the adapters that step environments; no state, usable from any thread.
"""

from __future__ import annotations

import numpy as np

from shoal.envs.arrays import all_finite
from shoal.envs.restarts import Restarts
from shoal.records import Columns


class BadValueError(Exception):
    """An environment returned what its own spaces do not allow; the text goes on from its name."""


def in_words(error: BaseException) -> str:
    """What an environment did when this was raised."""
    if isinstance(error, BadValueError):
        return str(error)
    return f"raised {one_line(error)}"


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_once(error: BaseException, restarts: Restarts) -> BaseException | None:
    """What to log a traceback of: the first fault, if it was raised by the user's code. It is mostly the same
    place again."""
    return error if restarts.num_restarts == 1 and not isinstance(error, BadValueError) else None


def is_finite(columns: Columns, reward: np.ndarray) -> bool:
    """The quick question, asked at every step."""
    if not all_finite(reward):
        return False
    for column in columns.values():  # noqa: SIM110 - a generator costs as much as the question
        if not all_finite(column):
            return False
    return True


def non_finite(columns: Columns, reward: np.ndarray) -> dict[int, str]:
    """Rows with NaN or infinity, and what to say of each."""
    found: dict[int, str] = {}
    for row in np.flatnonzero(~np.isfinite(reward)):
        found[int(row)] = f"gave a reward of {reward[row]}"
    for name, column in columns.items():
        if all_finite(column):
            continue
        for row in np.flatnonzero(~np.isfinite(column).reshape(len(column), -1).all(axis=1)):
            value = "NaN" if np.isnan(column[row]).any() else "infinity"
            found.setdefault(int(row), f"showed {value} in {name}")
    return found
