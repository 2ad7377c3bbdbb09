"""What recovery finds of a table's items, and how much of their payloads it keeps in memory.

Plain bookkeeping of one recovery, used by its one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

import numpy as np

from shoal.journal.events import Inserted, StoredPayload, TableState


class Budget:
    """Lets the oldest payloads go once there are too many bytes of them."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._payloads: deque[StoredPayload] = deque()

    def add(self, payloads: Iterable[StoredPayload]) -> None:
        if self._max_bytes is None:
            return
        for payload in payloads:
            if payload.data is not None:
                self._payloads.append(payload)
                self._bytes += payload.size
        while self._bytes > self._max_bytes:
            oldest = self._payloads.popleft()
            oldest.data = None
            self._bytes -= oldest.size


class FoundItems:
    """The inserts that hold items of a state."""

    def __init__(self, state: TableState | None, budget: Budget) -> None:
        self._keys = state.keys if state is not None else np.empty(0, np.uint64)
        # Most often no key is missing in between, and then no search is needed.
        self._first = int(self._keys[0]) if self._keys.size else 0
        self._has_gaps = self._keys.size > 0 and int(self._keys[-1]) - self._first + 1 != self._keys.size
        self._budget = budget
        # By first key, with how many of its items are live; no two overlap.
        self._by_key: dict[int, tuple[Inserted, int]] = {}
        self._first_keys: list[int] = []

    def add(self, record: Inserted) -> None:
        """In the order in which they were written."""
        start, end = self._live_range(record)
        num_live = end - start
        if num_live:
            self._put(record, num_live)
        if len(record.payloads) > 1 and num_live < record.num_keys:
            live = set(self._keys[start:end].tolist())
            for key, payload in enumerate(record.payloads, record.first_key):
                if key not in live:
                    payload.data = None
        elif not num_live:
            record.payloads[0].data = None
        self._budget.add(record.payloads)

    def in_order(self) -> list[Inserted]:
        """By key. No two of them overlap."""
        return [self._by_key[key][0] for key in self._first_keys]

    def num_missing(self) -> int:
        """Items of the state that are in no file."""
        return int(self._keys.size) - sum(num_live for _, num_live in self._by_key.values())

    def _put(self, record: Inserted, num_live: int) -> None:
        """In place of all with a key of its own: it was written again, or damage made keys be used again."""
        first_keys, begin = self._first_keys, record.first_key
        start = bisect_left(first_keys, begin)
        if start > 0:
            before, _ = self._by_key[first_keys[start - 1]]
            start -= before.first_key + before.num_keys > begin
        stop = bisect_left(first_keys, begin + record.num_keys)
        for key in first_keys[start:stop]:
            del self._by_key[key]
        first_keys[start:stop] = [begin]
        self._by_key[begin] = record, num_live

    def _live_range(self, record: Inserted) -> tuple[int, int]:
        """Which of the state's keys are this record's."""
        begin, end = record.first_key, record.first_key + record.num_keys
        if self._has_gaps:
            # Of the same type as the keys, or NumPy would convert all of those each time.
            found = self._keys.searchsorted(np.array([begin, end], np.uint64))
            return int(found[0]), int(found[1])
        size = len(self._keys)
        return min(max(begin - self._first, 0), size), min(max(end - self._first, 0), size)
