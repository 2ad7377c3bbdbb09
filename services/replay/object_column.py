"""Objects by slot, for tables of millions of items: used by tables and `PayloadStore`, on the event loop.

The garbage collector does not look into NumPy arrays. A list of a million payloads takes it 85 ms per full
pass, and a million objects with slots 230 ms, in which nothing else happens; an array takes none. Therefore
only objects that refer to no others may be in here, as bytes do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

from shoal.records import Life

T = TypeVar("T")

_SHIFT = 19
_BLOCK = 1 << _SHIFT
_MASK = _BLOCK - 1
# Enough for all actors at a time.
_MAX_SHARED_LIVES = 4096


class ObjectColumn(Generic[T]):
    """`num_slots` objects, all None at first, which T should allow for.

    Memory is only used for blocks in which one was set: 4 MiB each, so a new one is no long work either.
    """

    def __init__(self, num_slots: int) -> None:
        self._block_size = min(_BLOCK, num_slots)
        self._blocks: list[np.ndarray | None] = [None] * -(-num_slots // _BLOCK)

    def __getitem__(self, slot: int) -> T:
        """Of a slot that was set."""
        found: T = self._block(slot >> _SHIFT)[slot & _MASK]
        return found

    def __setitem__(self, slot: int, value: T) -> None:
        self._block(slot >> _SHIFT)[slot & _MASK] = value

    def take(self, slots: np.ndarray) -> list[T]:
        """Of slots that were set."""
        if len(self._blocks) == 1:
            taken = self._block(0)[slots]
        else:
            taken = np.empty(len(slots), object)
            for number, chosen in _by_block(slots):
                taken[chosen] = self._block(number)[slots[chosen] & _MASK]
        objects: list[T] = taken.tolist()
        return objects

    def fill(self, slots: np.ndarray, value: T) -> None:
        for number, chosen in _by_block(slots):
            self._block(number)[slots[chosen] & _MASK] = value

    def _block(self, number: int) -> np.ndarray:
        block = self._blocks[number]
        if block is None:
            block = self._blocks[number] = np.empty(self._block_size, object)
        return block


class SharedLives:
    """Makes equal lives the same object: each append, and each record of a file, brings one of its own."""

    def __init__(self) -> None:
        self._lives: dict[Life, Life] = {}

    def __call__(self, life: Life) -> Life:
        if len(self._lives) >= _MAX_SHARED_LIVES:
            self._lives.clear()
        return self._lives.setdefault(life, life)


def _by_block(slots: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each block that there are slots of, and which those are."""
    numbers = slots >> _SHIFT
    for number in set(numbers.tolist()):
        yield number, np.flatnonzero(numbers == number)
