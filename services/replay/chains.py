"""Which unrolls a sequence table holds, which of them follow each other, and which sequences they make.

Used by `SequenceTable`, on the event loop. An unroll is stored once, however many sequences share it. A
sequence is named by the key of its last unroll. Whether an unroll ends a sequence is decided when it comes,
by the unrolls before it that are still there; everything else follows from the unrolls that are there. So
the same unrolls with the same ends make the same sequences after a restart.

All of it is in columns by slot (key % max_items): samples take whole batches from them, and millions of
unrolls are no objects for the garbage collector to look at.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from services.replay.object_column import ObjectColumn, SharedLives
from shoal.records import Life


class Unroll(NamedTuple):
    """What is known of one unroll of one environment, besides its bytes."""

    life: Life
    sequence: int
    stream: int
    first_step: int
    num_steps: int


class Chains:
    """Unrolls by key. Each belongs to a chain: an unbroken row of unrolls of one stream of one life.

    A sequence is `length` consecutive unrolls; the next one of the same chain shares `overlap` of them. All
    keys that are there are of one span of at most `max_items`.
    """

    def __init__(self, max_items: int, length: int, overlap: int) -> None:
        self._max_items = max_items
        self._length = length
        self._overlap = overlap
        # 0: there is none in this slot.
        self._all_keys, self._keys = _column(max_items, np.uint64)
        self._lives: ObjectColumn[Life | None] = ObjectColumn(max_items)
        self._all_sequences, self._sequences = _column(max_items, np.uint64)
        _, self._streams = _column(max_items, np.uint64)
        _, self._first_steps = _column(max_items, np.uint64)
        _, self._num_steps = _column(max_items, np.uint32)
        # Neighbours in the chain, by key: 0 where there is none.
        self._all_previous, self._previous = _column(max_items, np.uint64)
        _, self._following = _column(max_items, np.uint64)
        # The last one of a sequence, even if that can no longer be sampled.
        self._all_ends, self._ends = _column(max_items, np.bool_)
        # Ends a sequence that can be sampled: all of it is there, and it was not sampled too often.
        self._all_alive, self._alive = _column(max_items, np.bool_)
        # Sequences alive that it is a part of.
        _, self._num_uses = _column(max_items, np.uint8)
        # The newest unroll of each stream, while it is there.
        self._tails: dict[tuple[Life, int], int] = {}
        self._shared = SharedLives()

    def __contains__(self, key: int) -> bool:
        return self._keys[key % self._max_items] == key

    def __getitem__(self, key: int) -> Unroll:
        slot = self._slot(key)
        life = self._lives[slot]
        assert life is not None
        return Unroll(
            life,
            self._sequences[slot],
            self._streams[slot],
            self._first_steps[slot],
            self._num_steps[slot],
        )

    def contains(self, keys: np.ndarray) -> np.ndarray:
        there: np.ndarray = self._all_keys[self._slots(keys)] == keys
        return there

    def ends(self, keys: np.ndarray) -> np.ndarray:
        """Which of these unrolls, which must be there, are the last of a sequence."""
        ends: np.ndarray = self._all_ends[self._slots(keys)]
        return ends

    def alive(self, keys: np.ndarray) -> np.ndarray:
        """Which of these keys are sequences that can be sampled."""
        slots = self._slots(keys)
        alive: np.ndarray = (self._all_keys[slots] == keys) & self._all_alive[slots]
        return alive

    def origins(self, keys: np.ndarray) -> tuple[list[Life], list[int]]:
        """Life and sequence of the appends that these unrolls, which must be there, came with."""
        slots = self._slots(keys)
        lives = cast(list[Life], self._lives.take(slots))
        return lives, self._all_sequences[slots].tolist()

    def members(self, keys: np.ndarray) -> np.ndarray:
        """The unrolls of these sequences, which must be alive: a row of keys each, in order."""
        members = np.empty((len(keys), self._length), np.uint64)
        members[:, -1] = keys
        for i in reversed(range(self._length - 1)):
            members[:, i] = self._all_previous[self._slots(members[:, i + 1])]
        return members

    def append(self, key: int, unroll: Unroll, ends: bool | None = None, *, spent: bool = False) -> None:
        """Add the newest unroll. `ends` and `spent` say what is known of it from before a restart."""
        life = self._shared(unroll.life)
        slot = key % self._max_items
        self._keys[slot] = key
        self._lives[slot] = life
        self._sequences[slot] = unroll.sequence
        self._streams[slot] = unroll.stream
        self._first_steps[slot] = unroll.first_step
        self._num_steps[slot] = unroll.num_steps
        stream = (life, unroll.stream)
        if before := self._tails.get(stream, 0):
            at = self._slot(before)
            if self._first_steps[at] + self._num_steps[at] == unroll.first_step:
                self._previous[slot] = before
                self._following[at] = key
        self._tails[stream] = key
        self._ends[slot] = is_end = self._is_end(key) if ends is None else ends
        if is_end and not spent and len(members := self._members(key)) == self._length:
            self._alive[slot] = True
            self._count_use(members, 1)

    def spend(self, key: int) -> list[int]:
        """The sequence was sampled for the last time. Returns the unrolls that no sequence needs any more."""
        members = self._members(key)
        if self._alive[self._slot(key)]:
            self._kill(key, members)
        # Sequences to come share the last `overlap` unrolls of the newest one of the chain.
        distance = self._distance_to_newest_end(key)
        return [
            member
            for i, member in enumerate(reversed(members))
            if self._num_uses[self._slot(member)] == 0 and i + distance >= self._overlap
        ]

    def drop(self, key: int) -> list[int]:
        """An unroll is gone. Returns the sequences that are no longer alive, by key."""
        dead = []
        at = key
        # One that ends further on does not reach back to here.
        for _ in range(self._length):
            if self._alive[self._slot(at)]:
                self._kill(at, self._members(at))
                dead.append(at)
            if not (at := self._following[self._slot(at)]):
                break
        slot = self._slot(key)
        if previous := self._previous[slot]:
            self._following[self._slot(previous)] = 0
        if following := self._following[slot]:
            self._previous[self._slot(following)] = 0
        life = self._lives[slot]
        assert life is not None
        stream = (life, self._streams[slot])
        if self._tails.get(stream) == key:
            del self._tails[stream]
        self._keys[slot] = self._previous[slot] = self._following[slot] = 0
        self._ends[slot] = False
        self._lives[slot] = None
        return dead

    def _is_end(self, key: int) -> bool:
        """Whether there are enough unrolls before it, and the last end is as far back as it must be."""
        at = self._previous[self._slot(key)]
        for distance in range(1, self._length):
            if not at or (self._ends[self._slot(at)] and distance < self._length - self._overlap):
                return False
            at = self._previous[self._slot(at)]
        return True

    def _members(self, key: int) -> list[int]:
        """The unrolls of the sequence that ends here, in order; fewer where the chain is broken."""
        members = [key]
        while len(members) < self._length and (key := self._previous[self._slot(key)]):
            members.append(key)
        members.reverse()
        return members

    def _distance_to_newest_end(self, key: int) -> int:
        """From one end to the last one after it; looks no further than matters.

        As far as matters if the chain is broken before the newest unroll: nothing will ever continue it.
        """
        newest = 0
        for distance in range(1, self._length + 1):
            slot = self._slot(key)
            if not (following := self._following[slot]):
                life = self._lives[slot]
                assert life is not None
                return newest if self._tails.get((life, self._streams[slot])) == key else self._overlap
            key = following
            if self._ends[self._slot(key)]:
                newest = distance
        return newest

    def _kill(self, end: int, members: list[int]) -> None:
        self._alive[self._slot(end)] = False
        self._count_use(members, -1)

    def _count_use(self, members: list[int], change: int) -> None:
        for member in members:
            self._num_uses[self._slot(member)] += change

    def _slot(self, key: int) -> int:
        return key % self._max_items

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return (keys % np.uint64(self._max_items)).astype(np.intp)


def _column(num_slots: int, dtype: DTypeLike) -> tuple[np.ndarray, memoryview]:
    """Zeros, as an array for whole batches and as a view that is several times faster for a single one.

    Their memory is only used where something was set.
    """
    column = np.zeros(num_slots, dtype)
    return column, column.data
