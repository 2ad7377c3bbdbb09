"""Keeps the ratio of samples to inserts: who may go on, who has to wait for the other side.

Pure arithmetic on two counters; the tables ask and tell, on the event loop. Nobody waits here: see `gate.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

UNLIMITED = sys.maxsize


class RateLimiter:
    """`samples_per_insert` samples for every item inserted, either side at most `tolerance` samples ahead.

    `surplus` is how many samples the inserts have paid for that were not taken yet, counted from the
    insert that makes `min_items` on; those before it pay for nothing. Each side is checked before it moves:
    one append may overshoot by as much as it inserts, and since `tolerance` is above 0 the two sides never
    wait for each other. Below `min_items` an insert always goes; one that the ratio would have made wait pays
    for nothing, or a table that is kept that small would owe more and more samples. Without
    `samples_per_insert` only `min_items` counts.

    All numbers of items are of items that can be sampled.
    """

    def __init__(self, samples_per_insert: float | None, tolerance: float, min_items: int) -> None:
        self._samples_per_insert = samples_per_insert
        self._tolerance = tolerance
        self._min_items = min_items
        self._num_inserts = 0
        self._num_samples = 0

    @property
    def surplus(self) -> float:
        """Above 0 the inserts are ahead, below 0 the samples; 0 where there is no ratio."""
        if self._samples_per_insert is None:
            return 0.0
        return self._samples_per_insert * (self._num_inserts - self._min_items) - self._num_samples

    @property
    def imbalance(self) -> float:
        """`surplus` for whoever watches: 0 too while the table fills up to `min_items` and nobody samples."""
        return self.surplus if self._num_inserts >= self._min_items else 0.0

    def may_insert(self, num_items: int) -> bool:
        """Whether an append of any size may go, while the table holds `num_items`."""
        return num_items < self._min_items or self.surplus < self._tolerance

    def may_sample(self, num_items: int) -> int:
        """How many samples may be taken now, while the table holds `num_items`. 0: wait."""
        if num_items < self._min_items:
            return 0
        if self._samples_per_insert is None:
            return UNLIMITED
        return max(0, math.ceil(self.surplus + self._tolerance))

    def inserted(self, num_items: int) -> None:
        if self.surplus < self._tolerance:
            self._num_inserts += num_items

    def sampled(self, num_samples: int) -> None:
        self._num_samples += num_samples

    def counters(self) -> dict[str, float]:
        """What `restore` takes. Counts are exact up to 2^53."""
        return {
            "limiter_inserts": self._num_inserts,
            "limiter_samples": self._num_samples,
            "limiter_samples_per_insert": self._samples_per_insert or 0.0,
            "limiter_min_items": self._min_items,
        }

    def restore(self, counters: Mapping[str, float]) -> None:
        """Go on where `counters` were taken; other names in there are ignored.

        If they are missing, or belong to another ratio or minimum, what they say of the past would
        stall one side for as long as that past was: then both sides begin level.
        """
        now = self.counters()
        if all(
            counters.get(name) == now[name] for name in ("limiter_samples_per_insert", "limiter_min_items")
        ):
            self._num_inserts = int(counters.get("limiter_inserts", 0))
            self._num_samples = int(counters.get("limiter_samples", 0))
        else:
            self._num_inserts = self._min_items
            self._num_samples = 0
