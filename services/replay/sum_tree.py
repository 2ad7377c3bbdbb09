"""Numbers by slot, with their sum and with the slot at any point of that sum: how priorities are sampled.

A tree of NumPy arrays, each node the sum of its `FAN_OUT` children; whole batches of slots go up or down one
level per step. A node is added up anew from its children whenever one of them changes, so rounding errors
never pile up. Used by `PriorityRing` on the event loop; no locks.
"""

from __future__ import annotations

import numpy as np

# Children per node: a power of two. At a million slots a batch costs 20 steps in a binary tree and 5 in this
# one; with still more children the work per step grows faster than the number of steps shrinks.
FAN_OUT = 16
_SHIFT = FAN_OUT.bit_length() - 1


class SumTree:
    """`capacity` non-negative numbers, all 0 at first. Memory is only used where something was set."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity of a sum tree is {capacity}: at least 1 is needed")
        # From the leaves to the children of the root, each as [nodes above, FAN_OUT].
        self._levels: list[np.ndarray] = []
        num_nodes = capacity
        while num_nodes > 1 or not self._levels:
            num_nodes = -(-num_nodes // FAN_OUT)
            self._levels.append(np.zeros((num_nodes, FAN_OUT)))
        # The same memory, node after node.
        self._nodes = [level.reshape(-1) for level in self._levels]
        self._total = 0.0
        self._num_positive = 0

    @property
    def total(self) -> float:
        return self._total

    @property
    def num_positive(self) -> int:
        """Slots whose number is above 0."""
        return self._num_positive

    def get(self, slots: np.ndarray) -> np.ndarray:
        values: np.ndarray = self._nodes[0][slots]
        return values

    def set(self, slots: np.ndarray, values: np.ndarray | float) -> None:
        """Where a slot is named twice the last value counts. Values are finite, and so is their sum."""
        if not len(slots):
            return
        leaves = self._nodes[0]
        touched = distinct(np.sort(slots))
        before = np.count_nonzero(leaves[touched])
        leaves[slots] = values
        self._num_positive += int(np.count_nonzero(leaves[touched]) - before)
        for level, above in zip(self._levels, self._nodes[1:], strict=False):
            touched = distinct(touched >> _SHIFT)
            above[touched] = level[touched].sum(axis=1)
        self._total = float(self._levels[-1][0].sum())

    def find(self, points: np.ndarray) -> np.ndarray:
        """The slots at these points of [0, total), slot after slot: never one whose number is 0.

        Points beyond either end, as rounding makes them, belong to the first or the last slot of the sum.
        """
        if self._num_positive == 0:
            raise ValueError("cannot find a point in a sum tree that is all 0")
        rest = np.maximum(points, 0.0)
        rows = np.arange(len(rest))
        slots = np.zeros(len(rest), np.intp)
        # Where each child ends, after a 0 where the first one begins.
        ends = np.zeros((len(rest), FAN_OUT + 1))
        for level in reversed(self._levels):
            np.cumsum(level.take(slots, axis=0), axis=1, out=ends[:, 1:])
            # Strictly below the end, so some child ends above the point; the first that does ends above the
            # one before it, so it is above 0.
            rest = np.minimum(rest, np.nextafter(ends[:, -1], 0.0))
            child = (ends[:, 1:] > rest[:, None]).argmax(axis=1)
            rest = rest - ends[rows, child]
            slots = (slots << _SHIFT) + child
        return slots


def distinct(values: np.ndarray) -> np.ndarray:
    """Of ascending values, each once. Many times faster than np.unique where they are sorted already."""
    is_new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    once: np.ndarray = values[is_new]
    return once
