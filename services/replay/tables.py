"""What a shard asks of a table, whatever its kind, and the ledger that every table keeps.

Called by `Shard` only. All of it runs on the process's one event loop: no locks, and state changes only
between two awaits. Tables hold plain data; they know neither gRPC nor what is inside a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.clients.replay import PrioritiesUpdated, TableStats
from shoal.records import Item, Life

# Why a shard that leaves refuses.
DRAINING = "replay shard is draining: use another one"

# Why items are refused: above a limit, or not what the protocol says.
REJECT_REASONS = ("invalid", "limit")


@dataclass(slots=True, eq=False)
class Insertion:
    """An item on its way into a table.

    The table sets `key` in the moment that it stores the item. So a caller that is cancelled while it
    waits can still tell what became of its item.
    """

    life: Life
    sequence: int
    payload: bytes
    key: int | None = None


@dataclass(slots=True)
class Ledger:
    """Counters of one table since the process started: inserted = stored + sampled_out + evicted.

    The table counts what goes in and out, the shard what never gets in.
    """

    num_inserted: int = 0
    num_sampled_out: int = 0
    num_evicted: int = 0
    num_duplicates: int = 0
    num_insert_timeouts: int = 0
    num_sample_timeouts: int = 0
    num_rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECT_REASONS, 0))
    received_bytes: int = 0
    sampled_bytes: int = 0
    insert_wait_s: float = 0.0
    sample_wait_s: float = 0.0


class Table(Protocol):
    """A bounded store of items."""

    ledger: Ledger

    @property
    def insert_timeout_s(self) -> float: ...

    @property
    def sample_timeout_s(self) -> float: ...

    @property
    def num_items(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def priority_mass(self) -> float:
        """Sum of the priorities of all items."""
        ...

    async def insert(self, insertion: Insertion, timeout_s: float) -> bool:
        """Waits for room; False if there was none in time. Cancel at will.

        Raises LimitError for an item that never fits and UnavailableError once inserts have stopped.
        """
        ...

    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> tuple[Item, ...]:
        """At most `num_items` items and `max_bytes` of payloads and overhead, yet one if there is any.

        None if none came in time. Cancel at will: whoever is cancelled has taken nothing.
        Raises UnavailableError once samples have stopped.
        """
        ...

    def update_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> PrioritiesUpdated:
        """Raises FailedPreconditionError if the table has no priorities."""
        ...

    def stats(self) -> TableStats: ...

    def stop_inserts(self) -> None:
        """Ends waiting inserts and refuses new ones, for good."""
        ...

    def stop_samples(self) -> None:
        """Ends waiting samples and refuses new ones, for good."""
        ...
