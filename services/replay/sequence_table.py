"""The `sequence` table: sequences of one environment each, sampled by priority; the oldest are dropped.

Called by `Shard` and by recovery, on the event loop. Items are unrolls, stored as the bytes that came. Which
of them make a sequence is in `Chains`; which are in memory and which only on disk is in `PayloadStore`. Both
keep columns, not an object per unroll: samples and updates of a batch are a few NumPy calls.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from services.replay.chains import Chains, Unroll
from services.replay.ring_table import RingTable
from services.replay.storage.payload_store import Found
from services.replay.tables import EventSink, Insertion
from shoal.clients.replay_shard import ITEM_OVERHEAD_BYTES, Sampled
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.errors import InvalidArgumentError
from shoal.journal.events import Inserted, StoredPayload, TableState
from shoal.metrics import Clock
from shoal.records import Item, Life

_PAYLOADS = operator.attrgetter("payloads")
# What reading gets at least, however late the turn of a sample came.
MIN_READ_S = 1.0


class Payloads(Protocol):
    """Where the bytes of payloads are: `services.replay.storage.payload_store.PayloadStore`."""

    @property
    def ram_bytes(self) -> int: ...

    def add(self, key: int, payload: StoredPayload) -> None: ...

    def forget(self, keys: np.ndarray) -> None: ...

    def sizes(self, keys: np.ndarray) -> np.ndarray: ...

    def get(self, key: int) -> StoredPayload: ...

    def find(self, keys: np.ndarray) -> Found: ...

    async def fetch(self, found: Found) -> list[bytes | None]:
        """None where the bytes are damaged."""
        ...


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What a sample takes, before the bytes are read, and the table that it was taken from."""

    # Keys: a row of unrolls per sequence.
    members: np.ndarray
    # Of all members, row after row.
    payloads: Found
    lives: list[Life]
    sequences: list[int]
    masses: np.ndarray
    table: Sampled


class SequenceTable(RingTable):
    """Items are unrolls. A sequence has the key of its last one; other unrolls have no mass of their own."""

    def __init__(
        self,
        name: str,
        settings: SequenceSettings,
        sink: EventSink,
        store: Payloads,
        clock: Clock = time.monotonic,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(name, settings, sink, clock, rng or np.random.default_rng())
        self._payloads = store
        self._clock = clock
        self._unrolls = settings.unrolls
        self._chains = Chains(settings.max_items, settings.unrolls, settings.overlap_unrolls)
        self._num_bytes = 0
        # (key, size): the largest payload, the largest after it, and so on.
        self._largest: deque[tuple[int, int]] = deque()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def check(self, insertion: Insertion) -> None:
        self._check_size(len(insertion.payloads), insertion.num_bytes)
        self._check_priorities(insertion.priorities, len(insertion.payloads), "trajectories")
        for trajectory in insertion.trajectories:
            if trajectory.num_envs != 1:
                raise InvalidArgumentError(
                    f"trajectory of {trajectory.num_envs} environments: table {self._name!r} holds sequences "
                    "of one environment, append a trajectory for each"
                )

    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> Sampled:
        deadline = self._clock() + timeout_s
        while num_items:
            drawn = await self._gate.sample(lambda: self._take(num_items, max_bytes), timeout_s)
            if drawn is None:
                break
            try:
                items = await self._read(drawn, max(deadline - self._clock(), MIN_READ_S))
            except TimeoutError:
                # The disk is slow. What was drawn stays counted as handed out.
                self.ledger.num_sample_timeouts += 1
                break
            if items:
                table = drawn.table
                return Sampled(items, None, table.num_items, table.num_bytes, table.priority_mass)
            # All of it was damaged and is gone.
            timeout_s = deadline - self._clock()
        return self._state()

    def save(self) -> TableState:
        state = super().save()
        # NaN: the unroll ends no sequence. It has no priority then.
        state.priorities[~self._chains.ends(state.keys)] = np.nan
        return state

    def items_from(self, key: int, below: int | None = None) -> list[Inserted]:
        keys = self._keys_from(key, below)
        priorities = np.where(self._chains.ends(keys), self._ring.priorities_of(keys), np.nan)
        return [self._event(key, priorities[i : i + 1]) for i, key in enumerate(keys.tolist())]

    def restore(self, state: TableState, items: list[Inserted]) -> None:
        index = {key: i for i, key in enumerate(state.keys.tolist())}
        ends = ~np.isnan(state.priorities)
        most = self._settings.max_times_sampled
        spent = state.times_sampled >= (most or np.inf)
        found = np.zeros(len(index), np.bool_)
        too_old = state.next_key - self._settings.max_items
        for item in sorted(items, key=lambda item: item.first_key):
            unrolls = zip(_unrolls_of(item), item.payloads, strict=True)
            for key, (unroll, payload) in enumerate(unrolls, item.first_key):
                if (i := index.get(key)) is not None and not found[i]:
                    found[i] = True
                    if key >= too_old:
                        self._keep(
                            key, unroll, payload, bool(ends[i]), spent=len(spent) > 0 and bool(spent[i])
                        )
        alive = self._chains.alive(state.keys)
        self._restore_ring(state, found, np.nan_to_num(state.priorities[found]), alive[found])
        self._make_room(0, 0)

    @property
    def _ram_bytes(self) -> int:
        return self._payloads.ram_bytes

    def _store(self, insertion: Insertion) -> None:
        num_keys = len(insertion.payloads)
        event = Inserted(
            first_key=self._ring.next_key,
            num_keys=num_keys,
            life=insertion.life,
            sequence=insertion.sequence,
            payloads=tuple(StoredPayload.of(data) for data in insertion.payloads),
            priorities=np.full(num_keys, self._ring.max_priority)
            if insertion.priorities is None
            else insertion.priorities.astype(np.float64),
            streams=tuple(trajectory.stream for trajectory in insertion.trajectories),
            first_steps=tuple(trajectory.first_step for trajectory in insertion.trajectories),
            unroll_length=insertion.trajectories[0].unroll_length,
        )
        ends = self._add(event, [None] * num_keys)
        event.priorities[~ends] = np.nan
        insertion.first_key = event.first_key
        insertion.durable = self._sink.record(event)

    def _apply_inserted(self, event: Inserted) -> bool:
        if event.num_keys > self._settings.max_items or _num_bytes(event) > self._settings.max_bytes:
            return False
        self._add(event, (~np.isnan(event.priorities)).tolist())
        return True

    def _add(self, event: Inserted, ends: Sequence[bool | None]) -> np.ndarray:
        """Returns which of them end a sequence."""
        self._make_room(event.num_keys, _num_bytes(event))
        keys = np.arange(event.first_key, event.first_key + event.num_keys, dtype=np.uint64)
        for key, unroll, payload, is_known_end in zip(
            keys.tolist(), _unrolls_of(event), event.payloads, ends, strict=True
        ):
            self._keep(key, unroll, payload, is_known_end)
        is_end = self._chains.ends(keys)
        self._append_to_ring(np.where(is_end, event.priorities, 0.0), self._chains.alive(keys))
        return is_end

    def _keep(
        self, key: int, unroll: Unroll, payload: StoredPayload, ends: bool | None, *, spent: bool = False
    ) -> None:
        self._chains.append(key, unroll, ends, spent=spent)
        self._payloads.add(key, payload)
        size = payload.size
        self._num_bytes += size
        while self._largest and self._largest[-1][1] <= size:
            self._largest.pop()
        self._largest.append((key, size))

    def _make_room(self, num_items: int, num_bytes: int) -> None:
        """Evict the oldest until so much more fits."""
        needed_bytes = self._num_bytes + num_bytes - self._settings.max_bytes
        # Up to here the slots in the ring are needed.
        last = self._ring.next_key + num_items - 1 - self._settings.max_items
        victims = []
        for key in range(self._ring.oldest_key, self._ring.next_key):
            if key > last and needed_bytes <= 0:
                break
            if key in self._chains:
                victims.append(key)
                if needed_bytes > 0:
                    needed_bytes -= self._payloads.get(key).size
        self._evict(np.array(victims, np.uint64))

    def _drop(self, keys: np.ndarray) -> None:
        self._ring.remove(keys)
        # Those that do not even fit into the ring were never there.
        keys = keys[self._chains.contains(keys)]
        self._num_bytes -= int(self._payloads.sizes(keys).sum())
        self._payloads.forget(keys)
        dead = [end for key in keys.tolist() for end in self._chains.drop(key) if end != key]
        if dead:
            self._ring.set_sampleable(np.array(dead, np.uint64), False)
        while self._largest and self._largest[0][0] < self._ring.oldest_key:
            self._largest.popleft()

    def _spend(self, keys: np.ndarray) -> np.ndarray:
        gone = [member for key in keys.tolist() for member in self._chains.spend(key)]
        self._ring.set_sampleable(keys, False)
        return np.array(sorted(set(gone)), np.uint64)

    def _has_priority(self, keys: np.ndarray) -> np.ndarray:
        return self._chains.alive(keys)

    def _take(self, num_items: int, max_bytes: int) -> _Drawn:
        # As many as fit whichever they are: cutting off those that do not fit would favour small ones.
        largest = self._largest[0][1] * self._unrolls + ITEM_OVERHEAD_BYTES
        table = self._state()
        keys, masses = self._draw(min(num_items, max(1, max_bytes // largest)))
        members = self._chains.members(keys)
        found = self._payloads.find(members.reshape(-1))
        drawn = _Drawn(members, found, *self._chains.origins(keys), masses, table)
        # May remove them.
        self._handed_out(keys)
        return drawn

    async def _read(self, drawn: _Drawn, timeout_s: float) -> tuple[Item, ...]:
        """Those that are not damaged. Raises TimeoutError if the disk takes longer."""
        members = drawn.members
        # A timer costs more than all the rest, where nothing has to be read.
        async with asyncio.timeout(timeout_s) if drawn.payloads.places else nullcontext():
            data = await self._payloads.fetch(drawn.payloads)
        # A row for each sequence, as in `members`.
        payloads = zip(*[iter(cast(list[bytes], data))] * self._unrolls, strict=True)
        fields: Iterable[tuple[int, Life, int, tuple[bytes, ...], float]] = zip(
            members[:, -1].tolist(),
            drawn.lives,
            drawn.sequences,
            payloads,
            drawn.masses.tolist(),
            strict=True,
        )
        if None in data:
            self._drop_damaged(members.reshape(-1)[[payload is None for payload in data]])
            fields = [sequence for sequence in fields if None not in sequence[3]]
        items = tuple(itertools.starmap(Item, fields))
        self.ledger.sampled_bytes += sum(map(len, itertools.chain.from_iterable(map(_PAYLOADS, items))))
        return items

    def _drop_damaged(self, keys: np.ndarray) -> None:
        # Some may have gone in the meantime.
        damaged = np.unique(keys[self._chains.contains(keys)])
        self._evict(damaged)
        self.ledger.num_corrupt += len(damaged)
        self._gate.changed()

    def _event(self, key: int, priorities: np.ndarray) -> Inserted:
        """As which an unroll that is there was inserted, alone."""
        unroll = self._chains[key]
        return Inserted(
            first_key=key,
            num_keys=1,
            life=unroll.life,
            sequence=unroll.sequence,
            payloads=(self._payloads.get(key),),
            priorities=priorities,
            streams=(unroll.stream,),
            first_steps=(unroll.first_step,),
            unroll_length=unroll.num_steps,
        )

    def _state(self) -> Sampled:
        num_items, mass = self._on_offer
        return Sampled((), None, num_items, self._num_bytes, mass)


def _num_bytes(event: Inserted) -> int:
    return sum(payload.size for payload in event.payloads)


def _unrolls_of(event: Inserted) -> Iterator[Unroll]:
    for stream, first_step in zip(event.streams, event.first_steps, strict=True):
        yield Unroll(event.life, event.sequence, stream, first_step, event.unroll_length)
