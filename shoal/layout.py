"""Where the bytes of a trajectory's columns are: which block, and where in it. Pure functions, no bytes.

Used by `shoal.wire`, which remembers layouts: all trajectories of a sender mostly have the same one, and
whatever can be checked or computed without the bytes is then done once. Small columns share a block, since
unpacking each alone costs more than its bytes do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoal.codec import dtype_of, raw_nbytes
from shoal.errors import InvalidArgumentError, LimitError

# A part of the protocol: both sides must agree on it.
SHARED_BELOW_BYTES = 4096
# An observation has a column per key; what an environment shows beyond that is no sensible dictionary.
MAX_COLUMNS = 256


class ColumnSpec(NamedTuple):
    """One column, whole: its shape has all axes."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Slot(NamedTuple):
    """Where one column is."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    block: int
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Layout:
    """`slots` are in the order of the columns, `blocks` has those of each block.

    `block_bytes`: raw sizes. `bools`: block, begin and end of the bytes that may be 0 and 1 only.
    """

    slots: tuple[Slot, ...]
    blocks: tuple[tuple[Slot, ...], ...]
    block_bytes: tuple[int, ...]
    bools: tuple[tuple[int, int, int], ...]


def plan_layout(columns: Sequence[ColumnSpec], max_column_bytes: int, max_bytes: int) -> Layout:
    """Raises InvalidArgumentError or LimitError for columns that must not be; nothing is allocated."""
    if len(columns) > MAX_COLUMNS:
        raise LimitError(f"trajectory has {len(columns)} columns: at most {MAX_COLUMNS} are allowed")
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"column {next(n for n in names if names.count(n) > 1)!r} appears twice")
    sizes = {name: raw_nbytes(dtype, shape, max_column_bytes) for name, dtype, shape in columns}
    total = sum(sizes.values())
    if total > max_bytes:
        raise LimitError(
            f"trajectory of {total} bytes is above the limit of {max_bytes} bytes "
            "(limits.max_trajectory_bytes)"
        )
    small = [column for column in columns if sizes[column.name] < SHARED_BELOW_BYTES]
    # The largest elements first: then each column begins where its elements are aligned.
    small.sort(key=lambda column: dtype_of(column.dtype).itemsize, reverse=True)
    groups = [small] if small else []
    groups += [[column] for column in columns if sizes[column.name] >= SHARED_BELOW_BYTES]
    blocks = tuple(tuple(_slots(group, number, sizes)) for number, group in enumerate(groups))
    by_name = {slot.name: slot for block in blocks for slot in block}
    return Layout(
        slots=tuple(by_name[name] for name in names),
        blocks=blocks,
        block_bytes=tuple(sum(slot.num_bytes for slot in block) for block in blocks),
        bools=tuple(_bools(blocks)),
    )


def _slots(columns: Sequence[ColumnSpec], block: int, sizes: dict[str, int]) -> list[Slot]:
    slots = []
    offset = 0
    for name, dtype, shape in columns:
        slots.append(Slot(name, dtype_of(dtype), shape, block, offset, sizes[name]))
        offset += sizes[name]
    return slots


def _bools(blocks: Sequence[Sequence[Slot]]) -> Iterator[tuple[int, int, int]]:
    """Those that lie side by side are one."""
    for number, block in enumerate(blocks):
        for is_bool, run in itertools.groupby(block, lambda slot: slot.dtype == np.bool_):
            if is_bool:
                slots = list(run)
                yield number, slots[0].offset, slots[-1].offset + slots[-1].num_bytes
