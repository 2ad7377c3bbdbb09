"""What happens to a replay table, as plain data: the journal holds these, and recovery applies them again.

Tables make events, `services.replay.storage` writes them, `shoal.journal` reads them. Keys count up by one
per item over the life of a table, over restarts too; a key is never used twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from shoal.records import ArraySpec, Life


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of a payload are: number of the segment file, offset in it."""

    segment: int
    offset: int


@dataclass(slots=True, eq=False)
class StoredPayload:
    """The bytes of one item: in memory, in a segment file, or both.

    Mutable and shared: the journal sets `location` once the bytes are in the file, and `is_synced` once they
    are on the disk, or never will be because the item is gone: the location does not change any more then.
    `data` is never None while `location` is.
    """

    size: int
    crc32c: int
    data: bytes | None
    location: Location | None = None
    is_synced: bool = False

    @staticmethod
    def of(data: bytes) -> StoredPayload:
        return StoredPayload(len(data), crc32c(data), data)


@dataclass(frozen=True, slots=True)
class Inserted:
    """Items first_key .. first_key + num_keys - 1 were stored.

    Queue and sequence tables have a payload (a serialised `Trajectory`) per key. A transition table has one
    payload for all of them: columns with a row per key, as `shoal.wire.encode_columns` makes them.
    """

    first_key: int
    num_keys: int
    life: Life
    sequence: int
    payloads: tuple[StoredPayload, ...]
    # Before alpha, float64, one per key; empty where there are none.
    priorities: np.ndarray
    # Sequence tables: one per key; empty elsewhere.
    streams: tuple[int, ...] = ()
    first_steps: tuple[int, ...] = ()
    # Sequence tables: the steps of each unroll; 0 elsewhere.
    unroll_length: int = 0
    # The table's, where it is not that of the state or insert before; filled in by the journal.
    signature: tuple[ArraySpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """Items were handed out for good (uint64 keys)."""

    keys: np.ndarray


@dataclass(frozen=True, slots=True)
class SampledOnce:
    """Items were handed out and stay; `keys` (uint64) only where the table counts them, else empty."""

    num_samples: int
    keys: np.ndarray


@dataclass(frozen=True, slots=True)
class PrioritiesSet:
    """Items got new priorities (uint64 keys, float64 priorities before alpha)."""

    keys: np.ndarray
    priorities: np.ndarray


Event = Inserted | Removed | SampledOnce | PrioritiesSet


@dataclass(frozen=True, slots=True)
class SeenLife:
    """Which sequences of one life a table has stored: bit i of `bits` stands for `highest - i`."""

    life: Life
    highest: int
    bits: int


@dataclass(frozen=True)
class TableState:
    """All of a table but its payloads, at one moment.

    `keys` (uint64, ascending) are the items that were there. `priorities` (float64, before alpha) and
    `times_sampled` (uint32) have one entry per key, or none where the table keeps none.
    """

    kind: str
    signature: tuple[ArraySpec, ...]
    next_key: int
    keys: np.ndarray
    priorities: np.ndarray
    times_sampled: np.ndarray
    # Ledger and limiter by name.
    counters: dict[str, float]
    lives: tuple[SeenLife, ...] = ()
