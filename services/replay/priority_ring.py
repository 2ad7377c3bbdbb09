"""The index of all sampled tables: which items there are, how likely each is sampled, which one goes next.

Keys and numbers only; what belongs to them is the table's. Operations take arrays of keys and cost a few
NumPy calls, however many keys there are. Used by the tables on the event loop; no locks.
"""

from __future__ import annotations

import numpy as np

from services.replay.sum_tree import SumTree, distinct
from shoal.errors import InvalidArgumentError

# Of every item that can be sampled: far enough from the ends of float64 that a sum over all of them is finite
# and that a priority above 0 never becomes 0 by its exponent.
MIN_MASS = 1e-100
MAX_MASS = 1e100
# Keys looked at per step when the oldest item is searched beyond removed ones.
_SCAN_KEYS = 4096


class PriorityRing:
    """Items by key. Keys count up from 1; the item of a key is in slot key % max_items until it is gone.

    So the ring holds keys of a span of at most `max_items`: when the next key's slot is taken it is `full`,
    even if items in the middle were removed, and the oldest item has to go first.

    An item is sampled in proportion to its mass: priority ^ alpha, or 0 while it is not sampleable. With
    alpha 0 every mass is 1, whatever the priority; otherwise an item of priority 0 is never sampled.
    Methods that take keys ignore those that are gone, unless they say otherwise.
    """

    def __init__(
        self, max_items: int, alpha: float, max_times_sampled: int | None, rng: np.random.Generator
    ) -> None:
        self._capacity = max_items
        self._alpha = alpha
        self._max_times_sampled = max_times_sampled
        self._rng = rng
        self._tree = SumTree(max_items)
        # By slot. Zeros, because their memory is only used once it is written; no key is 0.
        self._keys = np.zeros(max_items, np.uint64)
        self._priorities = np.zeros(max_items)
        self._times_sampled = np.zeros(max_items, np.uint32)
        self._sampleable = np.zeros(max_items, np.bool_)
        self._num_items = 0
        self._next_key = 1
        self._oldest_key = 1
        self._max_priority = 1.0

    @property
    def num_items(self) -> int:
        return self._num_items

    @property
    def num_sampleable(self) -> int:
        """Items with a mass above 0."""
        return self._tree.num_positive

    @property
    def mass(self) -> float:
        """Of all items together."""
        return self._tree.total

    @property
    def next_key(self) -> int:
        return self._next_key

    @property
    def oldest_key(self) -> int:
        """The next key if there is no item."""
        return self._oldest_key

    @property
    def room(self) -> int:
        """How many items can be appended before the oldest has to go."""
        return self._capacity - (self._next_key - self._oldest_key)

    @property
    def max_priority(self) -> float:
        """The highest seen so far, at least 1: what an item gets that comes without one."""
        return self._max_priority

    def append(self, priorities: np.ndarray, sampleable: np.ndarray | bool = True) -> int:
        """Add an item per priority; returns the first key.

        Raises ValueError if there is no room for all of them: evict first.
        """
        raw = checked_priorities(priorities)
        if len(raw) > self.room:
            raise ValueError(
                f"{len(raw)} items do not fit into a ring with room for {self.room}: evict first"
            )
        first_key = self._next_key
        keys = np.arange(first_key, first_key + len(raw), dtype=np.uint64)
        self._next_key += len(raw)
        self._num_items += len(raw)
        self._fill(keys, raw, np.zeros(len(raw), np.uint32), sampleable)
        return first_key

    def remove(self, keys: np.ndarray) -> int:
        """Returns how many there were."""
        slots, live = self._locate(keys)
        slots = distinct(np.sort(slots[live]))
        self._keys[slots] = 0
        self._tree.set(slots, 0.0)
        self._num_items -= len(slots)
        self._skip_gone()
        return len(slots)

    def contains(self, keys: np.ndarray) -> np.ndarray:
        return self._locate(keys)[1]

    def draw(self, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and masses of items drawn with replacement, stratified, in random order.

        The mass is cut into `num_samples` equal strata with one draw from each. Fewer are returned where an
        item came up more often than `max_times_sampled` leaves it; at least one, unless the mass is 0.
        """
        if num_samples < 1 or self.num_sampleable == 0:
            return np.zeros(0, np.uint64), np.zeros(0)
        points = (np.arange(num_samples) + self._rng.random(num_samples)) * (self.mass / num_samples)
        # Shuffled, so that whoever takes only the first ones favours no part of the ring.
        slots = self._rng.permutation(self._tree.find(points))
        if self._max_times_sampled is not None:
            left = self._max_times_sampled - self._times_sampled[slots].astype(np.int64)
            # At least 1, should the limit be lower than it was when items were sampled.
            slots = slots[_num_before(slots) < np.maximum(left, 1)]
        return self._keys[slots], self._tree.get(slots)

    def count_samples(self, keys: np.ndarray) -> None:
        """Each key was sampled once more for every time it is named."""
        slots, live = self._locate(keys)
        np.add.at(self._times_sampled, slots[live], np.uint32(1))

    def spent(self, keys: np.ndarray) -> np.ndarray:
        """Which of them reached `max_times_sampled`, each once, ascending: to be removed by the caller."""
        if self._max_times_sampled is None:
            return np.zeros(0, np.uint64)
        slots, live = self._locate(keys)
        slots = slots[live]
        is_spent = self._times_sampled[slots] >= self._max_times_sampled
        return distinct(np.sort(self._keys[slots[is_spent]]))

    def set_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> tuple[int, int]:
        """Where a key is named twice the last one counts. Returns how many were set, how many are gone."""
        raw = checked_priorities(priorities)
        if len(raw) != len(keys):
            raise InvalidArgumentError(f"{len(keys)} keys but {len(raw)} priorities: one per key is needed")
        slots, live = self._locate(keys)
        slots, raw = slots[live], raw[live]
        self._priorities[slots] = raw
        self._max_priority = max(self._max_priority, float(raw.max(initial=0.0)))
        self._tree.set(slots, np.where(self._sampleable[slots], self._masses(raw), 0.0))
        return len(slots), len(keys) - len(slots)

    def set_sampleable(self, keys: np.ndarray, sampleable: np.ndarray | bool) -> None:
        """Without it an item keeps its priority but has no mass."""
        slots, live = self._locate(keys)
        wanted = np.broadcast_to(np.asarray(sampleable, np.bool_), live.shape)[live]
        slots = slots[live]
        self._sampleable[slots] = wanted
        self._tree.set(slots, np.where(wanted, self._masses(self._priorities[slots]), 0.0))

    def priorities_of(self, keys: np.ndarray) -> np.ndarray:
        """Before alpha; NaN for those that are gone."""
        slots, live = self._locate(keys)
        return np.where(live, self._priorities[slots], np.nan)

    def state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies: keys, ascending, with their priorities and how often each was sampled."""
        # Plain copies of one or two stretches: an index would take several times as long.
        start = self._oldest_key % self._capacity
        end = start + self._next_key - self._oldest_key
        keys, priorities, counts = (
            np.concatenate((by_slot[start:end], by_slot[: max(0, end - self._capacity)]))
            for by_slot in (self._keys, self._priorities, self._times_sampled)
        )
        if len(keys) > self._num_items:
            live = keys != 0
            keys, priorities, counts = keys[live], priorities[live], counts[live]
        return keys, priorities, counts

    def restore(
        self,
        next_key: int,
        keys: np.ndarray,
        priorities: np.ndarray,
        times_sampled: np.ndarray,
        sampleable: np.ndarray | bool = True,
        max_priority: float = 1.0,
    ) -> np.ndarray:
        """Begin anew with what `state` returned once; called before anything else.

        No priorities at all are as many of `max_priority`, no counts are zeros. Returns the keys that no
        longer fit, because `max_items` is smaller now.
        """
        keys = np.asarray(keys, np.uint64)
        if len(keys) and not (0 < keys[0] <= keys[-1] < next_key and (keys[1:] > keys[:-1]).all()):
            raise ValueError(
                f"keys {keys[0]}..{keys[-1]} of a ring must ascend, above 0 and below {next_key}"
            )
        raw = checked_priorities(priorities) if len(priorities) else np.full(len(keys), max_priority)
        counts = times_sampled if len(times_sampled) else np.zeros(len(keys), np.uint32)
        # Of keys too old for this ring: their slots belong to newer ones.
        cut = int(np.searchsorted(keys, np.uint64(max(0, next_key - self._capacity))))
        wanted = np.broadcast_to(np.asarray(sampleable, np.bool_), (len(keys),))
        self._max_priority = max_priority
        self._num_items = len(keys) - cut
        self._next_key = next_key
        self._oldest_key = int(keys[cut]) if cut < len(keys) else next_key
        self._fill(keys[cut:], raw[cut:], counts[cut:], wanted[cut:])
        return keys[:cut]

    def _fill(
        self, keys: np.ndarray, raw: np.ndarray, counts: np.ndarray, sampleable: np.ndarray | bool
    ) -> None:
        """Put items into their slots, which are free."""
        slots = self._slots(keys)
        self._keys[slots] = keys
        self._priorities[slots] = raw
        self._times_sampled[slots] = counts
        self._sampleable[slots] = sampleable
        self._max_priority = max(self._max_priority, float(raw.max(initial=0.0)))
        self._tree.set(slots, np.where(sampleable, self._masses(raw), 0.0))

    def _masses(self, raw: np.ndarray) -> np.ndarray:
        if self._alpha == 0:
            return np.ones(len(raw))
        with np.errstate(over="ignore", under="ignore"):
            masses = np.clip(raw**self._alpha, MIN_MASS, MAX_MASS)
        return np.where(raw > 0, masses, 0.0)

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return (keys % np.uint64(self._capacity)).astype(np.intp)

    def _locate(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slot of each key, and whether the item is still in it."""
        keys = np.asarray(keys, np.uint64)
        slots = self._slots(keys)
        return slots, (self._keys[slots] == keys) & (keys != 0)

    def _span(self, first_key: int, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys of a span of them that are still there, and their slots."""
        keys = np.arange(first_key, first_key + num_keys, dtype=np.uint64)
        slots, live = self._locate(keys)
        return keys[live], slots[live]

    def _skip_gone(self) -> None:
        """Move `oldest_key` on to an item that is there. Each key is passed once in the life of the ring."""
        while self._oldest_key < self._next_key:
            # Mostly it is the very next one.
            if self._keys[self._oldest_key % self._capacity] == self._oldest_key:
                return
            scanned = min(_SCAN_KEYS, self._next_key - self._oldest_key)
            keys, _ = self._span(self._oldest_key, scanned)
            self._oldest_key = int(keys[0]) if len(keys) else self._oldest_key + scanned


def checked_priorities(priorities: np.ndarray) -> np.ndarray:
    """As float64. Raises InvalidArgumentError unless all are finite and at least 0."""
    raw = np.asarray(priorities, np.float64)
    # NaN fails both comparisons.
    bad = ~((raw >= 0) & (raw < np.inf))
    if bad.any():
        raise InvalidArgumentError(
            f"priority {raw[bad][0]} ({np.count_nonzero(bad)} of {raw.size}): "
            "priorities must be finite and at least 0"
        )
    return raw


def _num_before(slots: np.ndarray) -> np.ndarray:
    """For each entry, how many earlier entries are equal to it."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    ranks = np.arange(len(slots)) - np.repeat(starts, np.diff(starts, append=len(slots)))
    before = np.empty(len(slots), np.intp)
    before[order] = ranks
    return before
