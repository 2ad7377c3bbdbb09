"""What tables have in common that are sampled again and again: a ring of items with priorities, a limiter.

The base of `SequenceTable` and `TransitionTable`; it knows keys, not what belongs to them. On the event
loop, no locks. Every change is first made completely and then told to the sink, so the state saved at any
moment is the one after all events told so far.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import numpy as np

from services.replay.arrivals import Arrivals
from services.replay.gate import Gate
from services.replay.priority_ring import PriorityRing, checked_priorities
from services.replay.rate_limiter import RateLimiter
from services.replay.tables import EventSink, Insertion, Ledger, table_stats
from shoal.clients.replay_shard import PrioritiesUpdated, Sampled, TableStats
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.errors import FailedPreconditionError, InvalidArgumentError, LimitError
from shoal.journal.events import Event, Inserted, PrioritiesSet, Removed, SampledOnce, TableState
from shoal.metrics import Clock

log = logging.getLogger(__name__)

_NO_KEYS = np.zeros(0, np.uint64)
_MAX_PRIORITY = "max_priority"


class RingTable(ABC):
    """A full ring drops its oldest items. Subclasses store what belongs to the keys."""

    def __init__(
        self,
        name: str,
        settings: SequenceSettings | TransitionSettings,
        sink: EventSink,
        clock: Clock,
        rng: np.random.Generator,
    ) -> None:
        self.ledger = Ledger()
        self.arrivals = Arrivals()
        self._name = name
        self._settings = settings
        self._sink = sink
        self._has_warned = False
        self._ring = PriorityRing(settings.max_items, settings.alpha, settings.max_times_sampled, rng)
        self._limiter = RateLimiter(settings.samples_per_insert, settings.ratio_tolerance, settings.min_items)
        self._gate = Gate(
            self.ledger,
            clock,
            may_insert=lambda _: self._limiter.may_insert(self._ring.num_sampleable),
            store=self._store_in_turn,
            may_sample=lambda: self._limiter.may_sample(self._ring.num_sampleable) > 0,
        )

    # What a subclass does.

    @property
    @abstractmethod
    def num_bytes(self) -> int: ...

    @abstractmethod
    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> Sampled: ...

    @property
    @abstractmethod
    def _ram_bytes(self) -> int: ...

    @abstractmethod
    def _store(self, insertion: Insertion) -> None:
        """Store it, tell the sink, and set `first_key` and `durable`."""

    @abstractmethod
    def _apply_inserted(self, event: Inserted) -> bool:
        """Store what is in it; its first key is the next one. False if it cannot be stored (any more)."""

    @abstractmethod
    def _drop(self, keys: np.ndarray) -> None:
        """Take items that are there out of the ring and whatever belongs to them out of memory."""

    @abstractmethod
    def _spend(self, keys: np.ndarray) -> np.ndarray:
        """These were sampled as often as allowed. Returns the keys of the items that have to go."""

    @abstractmethod
    def _has_priority(self, keys: np.ndarray) -> np.ndarray:
        """Which of them are there to be sampled."""

    # What they share.

    @property
    def insert_timeout_s(self) -> float:
        return self._settings.insert_timeout_s

    @property
    def sample_timeout_s(self) -> float:
        return self._settings.sample_timeout_s

    @property
    def num_items(self) -> int:
        return self._ring.num_items

    @property
    def oldest_key(self) -> int:
        return self._ring.oldest_key

    @property
    def ratio_surplus(self) -> float:
        """Samples that inserts have paid for and nobody took; below 0 the samples are ahead."""
        return self._limiter.imbalance

    async def insert(self, insertion: Insertion, timeout_s: float) -> bool:
        return await self._gate.insert(insertion, timeout_s)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> PrioritiesUpdated:
        if self._settings.alpha == 0:
            raise FailedPreconditionError(
                f"table {self._name!r} is sampled uniformly (alpha 0): its items have no priorities"
            )
        if len(keys) != len(priorities):
            raise InvalidArgumentError(
                f"{len(keys)} keys with {len(priorities)} priorities: send one for each"
            )
        keys, raw = np.asarray(keys, np.uint64), checked_priorities(priorities)
        there = self._has_priority(keys)
        num_gone = int(len(keys) - np.count_nonzero(there))
        keys, raw = keys[there], raw[there]
        self.ledger.num_priorities_gone += num_gone
        if len(keys):
            self._set_priorities(keys, raw)
            self._sink.record(PrioritiesSet(keys, raw))
            # Items may have got or lost all their mass.
            self._gate.changed()
        return PrioritiesUpdated(len(keys), num_gone)

    def stats(self) -> TableStats:
        return table_stats(
            self._name,
            self._settings,
            self.ledger,
            num_items=self._ring.num_items,
            num_bytes=self.num_bytes,
            ram_bytes=self._ram_bytes,
            priority_mass=self._ring.mass,
        )

    def stop_inserts(self) -> None:
        self._gate.stop_inserts()

    def stop_samples(self) -> None:
        self._gate.stop_samples()

    def save(self) -> TableState:
        keys, priorities, times_sampled = self._ring.state()
        counted = self._settings.max_times_sampled is not None
        return TableState(
            kind=self._settings.kind,
            signature=(),
            next_key=self._ring.next_key,
            keys=keys,
            priorities=priorities,
            times_sampled=times_sampled if counted else np.zeros(0, np.uint32),
            counters=self.ledger.counters()
            | self._limiter.counters()
            | {_MAX_PRIORITY: self._ring.max_priority},
        )

    def apply(self, event: Event) -> None:
        match event:
            case Inserted():
                # One that is known already comes from a snapshot that overlaps the state.
                if event.first_key >= self._ring.next_key:
                    self._skip_to(event.first_key)
                    if not self._apply_inserted(event):
                        self._skip_to(event.first_key + event.num_keys)
            case Removed():
                self._remove(event.keys[self._ring.contains(event.keys)])
            case SampledOnce():
                self._count_samples(event.num_samples, event.keys)
                self._remove(self._spend(self._ring.spent(event.keys)))
            case PrioritiesSet():
                there = self._has_priority(event.keys)
                self._set_priorities(event.keys[there], event.priorities[there])

    def _store_in_turn(self, insertion: Insertion) -> None:
        num_evicted, room, next_key = self.ledger.num_evicted, self._ring.room, self._ring.next_key
        self._store(insertion)
        self.arrivals.add(insertion.trajectories)
        is_small = self._ring.num_sampleable < self._settings.min_items
        if is_small and self.ledger.num_evicted > num_evicted and not self._has_warned:
            self._has_warned = True
            log.warning(
                "table %s: items are evicted while %d can be sampled and min_items is %d: as long as that is "
                "so, nothing is sampled; raise %s, or lower min_items",
                self._name,
                self._ring.num_sampleable,
                self._settings.min_items,
                "max_items" if self._ring.next_key - next_key > room else "max_bytes",
            )

    # For subclasses.

    @property
    def _on_offer(self) -> tuple[int, float]:
        """How many items can be sampled, and their mass. None below `min_items`: samplers turn elsewhere."""
        num_items = self._ring.num_sampleable
        return (num_items, self._ring.mass) if num_items >= self._settings.min_items else (0, 0.0)

    def _keys_from(self, key: int, below: int | None) -> np.ndarray:
        """Of the items that are there, as in `items_from`. Looks at no others."""
        next_key = self._ring.next_key
        first = max(key, self._ring.oldest_key)
        keys: np.ndarray = np.arange(first, max(first, min(below or next_key, next_key)), dtype=np.uint64)
        return np.compress(self._ring.contains(keys), keys)

    def _check_size(self, num_items: int, num_bytes: int) -> None:
        """Raises LimitError for what is larger than the whole table."""
        for what, size, limit in (
            ("items", num_items, self._settings.max_items),
            ("bytes", num_bytes, self._settings.max_bytes),
        ):
            if size > limit:
                raise LimitError(
                    f"append of {size} {what} is above max_{what} of table {self._name!r} ({limit}): "
                    "raise it or append less at once"
                )

    def _check_priorities(self, priorities: np.ndarray | None, num_needed: int, unit: str) -> None:
        if priorities is None:
            return
        if len(priorities) != num_needed:
            raise InvalidArgumentError(
                f"{len(priorities)} priorities for {num_needed} {unit} of table {self._name!r}: "
                "send one for each, or none"
            )
        checked_priorities(priorities)

    def _append_to_ring(self, priorities: np.ndarray, sampleable: np.ndarray | bool = True) -> None:
        before = self._ring.num_sampleable
        self._ring.append(priorities, sampleable)
        self._limiter.inserted(self._ring.num_sampleable - before)
        self.ledger.num_inserted += len(priorities)

    def _evict(self, keys: np.ndarray) -> None:
        if len(keys):
            self._drop(keys)
            self.ledger.num_evicted += len(keys)

    def _draw(self, num_items: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and masses of as many as the limiter allows. Then `_handed_out`."""
        allowed = self._limiter.may_sample(self._ring.num_sampleable)
        return self._ring.draw(min(num_items, allowed))

    def _handed_out(self, keys: np.ndarray) -> None:
        """Count the samples; what was sampled often enough is gone."""
        counted = keys if self._settings.max_times_sampled is not None else _NO_KEYS
        self._count_samples(len(keys), counted)
        self._sink.record(SampledOnce(len(keys), counted))
        spent = self._ring.spent(counted)
        if len(spent) and len(gone := self._spend(spent)):
            self._remove(gone)
            self._sink.record(Removed(gone))

    def _restore_ring(
        self, state: TableState, found: np.ndarray, priorities: np.ndarray, sampleable: np.ndarray
    ) -> None:
        """Take over the keys of the state that were `found`, and all that was counted."""
        times_sampled = state.times_sampled[found] if len(state.times_sampled) else state.times_sampled
        max_priority = state.counters.get(_MAX_PRIORITY, 1.0)
        keys = state.keys[found]
        too_old = self._ring.restore(
            state.next_key, keys, priorities, times_sampled, sampleable, max_priority
        )
        self._drop(too_old)
        self._limiter.restore(state.counters)
        self.ledger.restore(state.counters, num_items=self._ring.num_items)
        self.ledger.num_corrupt += int(len(found) - np.count_nonzero(found))

    def _count_samples(self, num_samples: int, keys: np.ndarray) -> None:
        if len(keys):
            self._ring.count_samples(keys)
        self._limiter.sampled(num_samples)
        self.ledger.num_samples += num_samples

    def _set_priorities(self, keys: np.ndarray, raw: np.ndarray) -> None:
        self._ring.set_priorities(keys, raw)
        self.ledger.num_priorities_updated += len(keys)

    def _remove(self, keys: np.ndarray) -> None:
        """They were sampled for the last time."""
        if len(keys):
            self._drop(keys)
            self.ledger.num_sampled_out += len(keys)

    def _skip_to(self, key: int) -> None:
        """The items of the keys from the next one up to this one were inserted once and are gone."""
        ring = self._ring
        lost = key - ring.next_key
        if lost == 0:
            return
        keys = ring.state()[0]
        self._evict(keys[keys < max(0, key - self._settings.max_items)])
        if ring.num_items:
            first_key = ring.append(np.zeros(lost), sampleable=False)
            ring.remove(np.arange(first_key, key, dtype=np.uint64))
        else:
            ring.restore(key, _NO_KEYS, np.zeros(0), np.zeros(0, np.uint32), max_priority=ring.max_priority)
        self.ledger.num_inserted += lost
        self.ledger.num_evicted += lost
