"""Rows by key in columns that are written over in turn: the memory of a transition table.

Used by `TransitionTable`, on the event loop. The columns have their full length from the start, so nothing is
ever copied to make them grow; the system gives them memory page by page, as rows are written.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np

from shoal.records import Columns

# The value on Linux; Python names it from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

# Name, dtype and shape of one row, per column.
RowSpec = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]


def row_spec(columns: Columns) -> RowSpec:
    """The same whatever the order of the columns and the number of rows."""
    return tuple(sorted((name, array.dtype, array.shape[1:]) for name, array in columns.items()))


def row_bytes(spec: RowSpec) -> int:
    return sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for _, dtype, shape in spec)


class ColumnRing:
    """Room for the rows of any `max_rows` consecutive keys from `first_key` on."""

    def __init__(self, spec: RowSpec, max_rows: int, first_key: int) -> None:
        self.spec = spec
        self.row_bytes = row_bytes(spec)
        self.max_rows = max_rows
        # The slot of a key is its distance from here, modulo max_rows.
        self.first_key = first_key
        self._columns: Columns = {name: _reserve(max_rows, dtype, shape) for name, dtype, shape in spec}
        self._num_used = 0

    @property
    def used_bytes(self) -> int:
        """Memory that was ever written to."""
        return self._num_used * self.row_bytes

    def write(self, keys: np.ndarray, columns: Columns) -> None:
        """Row i belongs to key i. Keys are of one span of at most `max_rows`, never below `first_key`."""
        if len(keys) == 0:
            return
        self._num_used = max(self._num_used, min(int(keys.max()) - self.first_key + 1, self.max_rows))
        slots = self._slots(keys)
        for name, rows in columns.items():
            self._columns[name][slots] = rows

    def read(self, keys: np.ndarray) -> Columns:
        """Copies of the rows of these keys, which must have been written."""
        slots = self._slots(keys)
        return {name: column[slots] for name, column in self._columns.items()}

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return ((keys - np.uint64(self.first_key)) % np.uint64(self.max_rows)).astype(np.intp)


def _reserve(num_rows: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of zeros. NumPy would be refused more than the machine has, however little is ever used."""
    num_values = num_rows * int(np.prod(shape, dtype=np.int64))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    memory = mmap.mmap(-1, max(1, num_values * dtype.itemsize), flags=flags)
    return np.frombuffer(memory, dtype, num_values).reshape(num_rows, *shape)
