"""Which columns a table takes: fixed by its first insert, checked at every one.

One per table, kept by the shard, which asks it on the event loop before anything is inserted. What a learner
samples then has the same columns in every item, and no NaN, infinity or category out of range.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """Unknown at first. Senders may declare columns beforehand; the first insert fixes all of them.

    `fixes_unroll_length`: the number of steps is fixed as well, as a table of sequences needs it.
    """

    def __init__(self, *, fixes_unroll_length: bool = False) -> None:
        self._fixes_unroll_length = fixes_unroll_length
        self._declared: dict[str, ArraySpec] = {}
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

    def declared(self, specs: Iterable[ArraySpec]) -> None:
        """What a sender says of its columns before it appends; all of it is taken over, or nothing.

        0 categories mean that it does not know. Raises FailedPreconditionError, with both, if the table
        knows otherwise.
        """
        specs = tuple(specs)
        _check_names(spec.name for spec in specs)
        known = {spec.name: spec for spec in self._known()}
        for spec in specs:
            mine = known.get(spec.name)
            if mine is None and not self._columns:
                mine = spec
            if mine is None or _disagree(mine, spec):
                raise FailedPreconditionError(_difference(spec, mine, specs, self._known()))
            known[spec.name] = replace(mine, num_categories=mine.num_categories or spec.num_categories)
        if self._columns:
            self._columns = {name: _column(spec) for name, spec in known.items()}
        else:
            self._declared = known

    def fit(self) -> Fit:
        """To check an append with; if that is stored, `fix` it."""
        return Fit(self._columns, self._unroll_length, self._declared, self._fixes_unroll_length)

    def fix(self, fit: Fit) -> None:
        """What the append was like is what all have to be like from now on."""
        self._columns, self._unroll_length = fit.columns, fit.unroll_length

    def _known(self) -> tuple[ArraySpec, ...]:
        if self._columns:
            return tuple(column.spec for column in self._columns.values())
        return tuple(self._declared.values())


class Fit:
    """The trajectories of an append against a signature, or against the first of them if there is none."""

    def __init__(
        self,
        columns: dict[str, _Column],
        unroll_length: int | None,
        declared: dict[str, ArraySpec],
        fixes_unroll_length: bool,
    ) -> None:
        self.columns = columns
        self.unroll_length = unroll_length
        self._declared = declared
        self._fixes_unroll_length = fixes_unroll_length

    def check(self, trajectory: Trajectory) -> None:
        """Raises Refused if it does not fit.

        It is complete by itself, as `shoal.wire.decode_trajectory` sees to.
        """
        if not self.columns:
            _check_names(trajectory.columns)
            # What was declared must be there.
            specs = {spec.name: spec for spec in _specs_of(trajectory)} | self._declared
            self.columns = {name: _column(spec) for name, spec in specs.items()}
        _check_columns(trajectory, self.columns)
        if self._fixes_unroll_length:
            if self.unroll_length is None:
                self.unroll_length = trajectory.unroll_length
            if trajectory.unroll_length != self.unroll_length:
                raise Refused(_other_length(trajectory, self.columns, self.unroll_length), "signature")
        _check_values(trajectory, self.columns)


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
