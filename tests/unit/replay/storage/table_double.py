"""The least of a table that storage can work with: items in a dictionary, events to a sink."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from services.replay.dedup import Dedup
from services.replay.storage.files import Files
from services.replay.storage.recovery import RecoveryReport, recover
from shoal.journal.events import (
    Event,
    Inserted,
    PrioritiesSet,
    Removed,
    SampledOnce,
    StoredPayload,
    TableState,
)
from shoal.records import ArraySpec, Life
from tests.unit.replay.storage.faulty_files import FaultyFiles

LIFE = Life("actor", "run")
SPEC = ArraySpec("observation", "float32", (4,))


def stored(data: bytes) -> StoredPayload:
    return StoredPayload(len(data), crc32c(data), data)


def inserted(key: int, data: bytes, sequence: int | None = None, life: Life = LIFE) -> Inserted:
    return Inserted(key, 1, life, key if sequence is None else sequence, (stored(data),), np.array([1.0]))


@dataclass
class TableDouble:
    """As `Table`, for storage. `sink` is a journal, or None."""

    sink: Any = None
    max_items: int = 1 << 30
    kind: str = "queue"

    def __post_init__(self) -> None:
        self.items: dict[int, Inserted] = {}
        self.priorities: dict[int, float] = {}
        self.next_key = 1
        self.num_samples = 0
        self.num_corrupt = 0
        # Whatever happens is counted, as real tables do in their ledgers.
        self.num_events = 0

    @property
    def num_items(self) -> int:
        return len(self.items)

    @property
    def num_bytes(self) -> int:
        return sum(payload.size for item in self.items.values() for payload in item.payloads)

    @property
    def oldest_key(self) -> int:
        return min(self.items, default=self.next_key)

    @property
    def contents(self) -> dict[int, bytes | None]:
        return {key: item.payloads[0].data for key, item in self.items.items()}

    def insert(self, data: bytes, sequence: int | None = None) -> asyncio.Future[None]:
        return self._record(inserted(self.next_key, data, sequence))

    def remove(self, *keys: int) -> asyncio.Future[None]:
        return self._record(Removed(np.array(keys, np.uint64)))

    def sample(self, num_samples: int) -> asyncio.Future[None]:
        return self._record(SampledOnce(num_samples, np.empty(0, np.uint64)))

    def set_priority(self, key: int, priority: float) -> asyncio.Future[None]:
        return self._record(PrioritiesSet(np.array([key], np.uint64), np.array([priority])))

    def save(self) -> TableState:
        keys = sorted(self.items)
        return TableState(
            kind=self.kind,
            signature=(SPEC,),
            next_key=self.next_key,
            keys=np.array(keys, np.uint64),
            priorities=np.array([self.priorities[key] for key in keys], np.float64),
            times_sampled=np.empty(0, np.uint32),
            counters={"num_samples": float(self.num_samples), "num_events": float(self.num_events)},
        )

    def items_from(self, key: int, below: int | None = None) -> list[Inserted]:
        return [self.items[k] for k in sorted(self.items) if key <= k < (below or self.next_key)]

    def restore(self, state: TableState, items: list[Inserted]) -> None:
        assert not self.items
        live = dict(zip(state.keys.tolist(), state.priorities.tolist(), strict=True))
        firsts = [item.first_key for item in items]
        assert firsts == sorted(set(firsts))
        for item in items:
            for key, payload in enumerate(item.payloads, item.first_key):
                if key in live:
                    self._add(key, item, payload, live[key])
        self.num_corrupt = len(live) - len(self.items)
        self.next_key = state.next_key
        self.num_samples = int(state.counters.get("num_samples", 0))

    def apply(self, event: Event) -> None:
        self.num_events += 1
        if isinstance(event, Inserted):
            assert event.first_key >= self.next_key, "applied twice"
            for i, payload in enumerate(event.payloads):
                self._add(event.first_key + i, event, payload, float(event.priorities[i]))
            self.next_key = event.first_key + event.num_keys
            while len(self.items) > self.max_items:
                self._drop(self.oldest_key)
        elif isinstance(event, Removed):
            for key in event.keys.tolist():
                self._drop(key)
        elif isinstance(event, SampledOnce):
            self.num_samples += event.num_samples
        else:
            for key, priority in zip(event.keys.tolist(), event.priorities.tolist(), strict=True):
                if key in self.items:
                    self.priorities[key] = priority

    def _record(self, event: Event) -> asyncio.Future[None]:
        self.apply(event)
        return self.sink.record(event)

    def _add(self, key: int, event: Inserted, payload: StoredPayload, priority: float) -> None:
        self.items[key] = Inserted(key, 1, event.life, event.sequence, (payload,), np.array([priority]))
        self.priorities[key] = priority

    def _drop(self, key: int) -> None:
        self.items.pop(key, None)
        self.priorities.pop(key, None)


class SignatureDouble:
    specs: tuple[ArraySpec, ...] = ()

    def restore(self, specs: tuple[ArraySpec, ...]) -> None:
        self.specs = specs


@dataclass
class Recovered:
    table: TableDouble
    dedup: Dedup
    signature: SignatureDouble
    report: RecoveryReport


def recovered(
    directory: Path, files: Files | None = None, max_ram_bytes: int | None = None, **table: Any
) -> Recovered:
    """What a new process finds."""
    found = Recovered(TableDouble(**table), Dedup(100), SignatureDouble(), RecoveryReport())
    found.report = recover(
        directory,
        found.table,
        found.dedup,
        found.signature,
        files or FaultyFiles(),
        max_ram_bytes,  # type: ignore[arg-type]
    )
    return found
