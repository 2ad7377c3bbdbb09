"""Which columns a table takes: fixed by its first insert, checked at every one.

One per table, kept by the shard, which asks it on the event loop before anything is inserted. What a learner
samples then has the same columns in every item, and no NaN, infinity or category out of range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.errors import FailedPreconditionError, InvalidArgumentError
from shoal.records import ArraySpec, Trajectory

# How the unroll length is kept among the specs: the one entry of a shape. No column may have this name.
UNROLL_LENGTH = "(unroll_length)"
# Of a signature in a message: senders choose the names of columns, and with them its length.
_MAX_TEXT = 4000


class Refused(InvalidArgumentError):
    """An append that is never stored; `reason` is one of `REJECT_REASONS`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Column:
    """A spec, and what of it every insert is compared with."""

    spec: ArraySpec
    dtype: np.dtype
    is_float: bool


class Signature:
    """Unknown at first; the first insert fixes all columns, with what its sender declared of them.

    `fixes_unroll_length`: the number of steps is fixed as well, as a table of sequences needs it.
    """

    def __init__(self, *, fixes_unroll_length: bool = False) -> None:
        self._fixes_unroll_length = fixes_unroll_length
        # Empty until the first insert.
        self._columns: dict[str, _Column] = {}
        self._unroll_length: int | None = None

    @property
    def specs(self) -> tuple[ArraySpec, ...]:
        """What `restore` takes; empty before the first insert. Shapes are of one step of one environment."""
        specs = tuple(column.spec for column in self._columns.values())
        if self._unroll_length is not None:
            specs += (ArraySpec(UNROLL_LENGTH, "int64", (self._unroll_length,)),)
        return specs

    def restore(self, specs: Iterable[ArraySpec]) -> None:
        """Go on with what `specs` was once."""
        known = {spec.name: spec for spec in specs}
        unroll_length = known.pop(UNROLL_LENGTH, None)
        self._unroll_length = unroll_length.shape[0] if unroll_length else None
        self._columns = {name: _column(spec) for name, spec in known.items()}

    def declared(self, specs: Sequence[ArraySpec]) -> None:
        """What a sender says of its columns before it appends; all of it is taken over, or nothing.

        0 categories mean that it does not know. Raises FailedPreconditionError, with both, if the table
        knows otherwise. A table that knows nothing yet is told again with each append: who never appends
        decides nothing.
        """
        columns = _with_declared(self._columns, specs)
        if self._columns:
            self._columns = columns

    def fit(self, declared: Sequence[ArraySpec] = ()) -> Fit:
        """To check an append with, of a sender that declared this; if that is stored, `fix` it.

        Raises Refused if the table has come to know otherwise.
        """
        try:
            columns = _with_declared(self._columns, declared)
        except FailedPreconditionError as error:
            raise Refused(str(error), "signature") from None
        return Fit(columns, self._unroll_length, bool(self._columns), self._fixes_unroll_length)

    def fix(self, fit: Fit) -> None:
        """What the append was like is what all have to be like from now on."""
        self._columns, self._unroll_length = fit.columns, fit.unroll_length


class Fit:
    """The trajectories of an append against a signature, or against the first of them if there is none."""

    def __init__(
        self,
        columns: dict[str, _Column],
        unroll_length: int | None,
        is_complete: bool,
        fixes_unroll_length: bool,
    ) -> None:
        """Unless `is_complete`, trajectories may have other columns besides these."""
        self.columns = columns
        self.unroll_length = unroll_length
        self._is_complete = is_complete
        self._fixes_unroll_length = fixes_unroll_length

    def check(self, trajectory: Trajectory) -> None:
        """Raises Refused if it does not fit.

        It is complete by itself, as `shoal.wire.decode_trajectory` sees to.
        """
        if not self._is_complete:
            _check_names(trajectory.columns)
            # What was declared must be there.
            self.columns = {spec.name: _column(spec) for spec in _specs_of(trajectory)} | self.columns
            self._is_complete = True
        _check_columns(trajectory, self.columns)
        if self._fixes_unroll_length:
            if self.unroll_length is None:
                self.unroll_length = trajectory.unroll_length
            if trajectory.unroll_length != self.unroll_length:
                raise Refused(_other_length(trajectory, self.columns, self.unroll_length), "signature")
        _check_values(trajectory, self.columns)


def _with_declared(columns: dict[str, _Column], specs: Sequence[ArraySpec]) -> dict[str, _Column]:
    """Columns with the categories that they lack; of no columns, those that are declared."""
    _check_names(spec.name for spec in specs)
    known = columns.copy()
    for spec in specs:
        mine = known.get(spec.name)
        if mine is None and not columns:
            mine = _column(spec)
        if mine is None or _disagree(mine.spec, spec):
            all_known = [column.spec for column in known.values()]
            mine_spec = None if mine is None else mine.spec
            raise FailedPreconditionError(_difference(spec, mine_spec, specs, all_known))
        if spec.num_categories and not mine.spec.num_categories:
            mine = _column(replace(mine.spec, num_categories=spec.num_categories))
        known[spec.name] = mine
    return known


def _check_names(names: Iterable[str]) -> None:
    if UNROLL_LENGTH in names:
        raise Refused(f"column {UNROLL_LENGTH} has a name that the table uses itself: rename it", "invalid")


def _check_columns(trajectory: Trajectory, columns: dict[str, _Column]) -> None:
    for name, array in trajectory.columns.items():
        column = columns.get(name)
        if column is None or array.dtype != column.dtype or array.shape[2:] != column.spec.shape:
            break
    else:
        if len(trajectory.columns) == len(columns):
            return
    received = {spec.name: spec for spec in _specs_of(trajectory)}
    known = {column.spec.name: column.spec for column in columns.values()}
    name = next(
        name
        for name in {**received, **known}
        if name not in received or name not in known or _disagree(received[name], known[name])
    )
    raise Refused(
        _difference(received.get(name), known.get(name), received.values(), known.values()), "signature"
    )


def _check_values(trajectory: Trajectory, columns: dict[str, _Column]) -> None:
    for name, array in trajectory.columns.items():
        column = columns[name]
        if column.is_float and not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))
            raise Refused(
                f"column {_text(name)} has {len(at)} values that are not finite, the first at "
                f"step {at[0][0]} of environment {at[0][1]}: mend the environment or the policy",
                "not_finite",
            )
        limit = column.spec.num_categories
        if limit and array.size and (array.min() < 0 or array.max() >= limit):
            worst = array.min() if array.min() < 0 else array.max()
            raise Refused(
                f"column {_text(name)} holds {worst}, but has {limit} categories: "
                f"0 to {limit - 1} are allowed",
                "range",
            )


def _column(spec: ArraySpec) -> _Column:
    dtype = np.dtype(spec.dtype)
    return _Column(spec, dtype, dtype.kind == "f")


def _specs_of(trajectory: Trajectory) -> list[ArraySpec]:
    return [ArraySpec(name, array.dtype.name, array.shape[2:]) for name, array in trajectory.columns.items()]


def _disagree(one: ArraySpec, other: ArraySpec) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return True
    both_know = one.num_categories > 0 and other.num_categories > 0
    return both_know and one.num_categories != other.num_categories


def _difference(
    received: ArraySpec | None,
    known: ArraySpec | None,
    all_received: Iterable[ArraySpec],
    all_known: Iterable[ArraySpec],
) -> str:
    """What differs first, then both signatures, in one line."""
    if known is None:
        first = f"column {_describe([received])} is none of the table's"
    elif received is None:
        first = f"column {_describe([known])} is missing"
    else:
        first = f"column {_describe([received])} differs from the table's"
    return (
        f"{first}. Received: {_describe(all_received)}. The table has: {_describe(all_known)}. "
        "Send the same columns, or use another table"
    )


def _other_length(trajectory: Trajectory, columns: dict[str, _Column], unroll_length: int | None) -> str:
    return (
        f"unroll of {trajectory.unroll_length} steps, but those of the table have {unroll_length}. "
        f"Received: {_describe(_specs_of(trajectory))}, {trajectory.unroll_length} steps. "
        f"The table has: {_describe(column.spec for column in columns.values())}, {unroll_length} steps. "
        "Send unrolls of the same length, or use another table"
    )


def _describe(specs: Iterable[ArraySpec | None]) -> str:
    return _text(", ".join(spec.describe() for spec in specs if spec is not None))


def _text(text: str) -> str:
    """In one line of bounded length, whatever a sender named its columns."""
    line = " ".join(text[:_MAX_TEXT].split())
    return line if len(text) <= _MAX_TEXT else f"{line} ..."
