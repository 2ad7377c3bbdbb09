"""What a shard asks of a table, whatever its kind, and the ledger that every table keeps.

Called by `Shard` and by recovery. All of it runs on the process's one event loop: no locks, and state
changes only between two awaits. Whatever changes what a table holds is also told to its journal, as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from services.replay.arrivals import Arrivals
from shoal.clients.replay_shard import PrioritiesUpdated, Sampled, TableStats
from shoal.config.tables import AnyTable
from shoal.journal.events import Event, Inserted, TableState
from shoal.records import Life, Trajectory

# Why a shard that leaves refuses.
DRAINING = "replay shard is draining: use another one"

# Trajectories in one append: an unroll of as many environments as a large group has, one by one.
MAX_PAYLOADS = 1 << 14

# Why appends are refused: malformed, above a limit, other columns than the table's, NaN or infinity, a value
# out of its range.
REJECT_REASONS = ("invalid", "limit", "signature", "not_finite", "range")


@dataclass(slots=True, eq=False)
class Insertion:
    """Checked trajectories on their way into a table, all of them or none.

    The table sets `first_key` in the moment that it stores them, so a caller that is cancelled while it
    waits can still tell what became of them; `durable` is what its journal answered: done once they are as
    safe as the table's durability promises, None if they are so already.
    """

    life: Life
    sequence: int
    payloads: tuple[bytes, ...]
    trajectories: tuple[Trajectory, ...]
    # As in `Append`.
    priorities: np.ndarray | None = None
    first_key: int | None = None
    durable: asyncio.Future[None] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.payloads))


@dataclass(slots=True)
class Ledger:
    """Counters of one table: inserted = stored + sampled_out + evicted + rejected.

    The table counts what goes in and out, the shard what never gets in (a refused trajectory is one item,
    inserted and rejected). `num_corrupt` is part of `num_evicted`.
    """

    num_inserted: int = 0
    num_sampled_out: int = 0
    num_evicted: int = 0
    num_corrupt: int = 0
    num_duplicates: int = 0
    num_insert_timeouts: int = 0
    num_sample_timeouts: int = 0
    num_samples: int = 0
    num_priorities_updated: int = 0
    num_priorities_gone: int = 0
    num_insert_waits: int = 0
    num_sample_waits: int = 0
    num_rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECT_REASONS, 0))
    received_bytes: int = 0
    sampled_bytes: int = 0
    insert_wait_s: float = 0.0
    sample_wait_s: float = 0.0

    def counters(self) -> dict[str, float]:
        """All of it by name, for the table's state on disk."""
        counters: dict[str, float] = {name: getattr(self, name) for name in _LEDGER_COUNTERS}
        return counters | {_REJECTED + reason: count for reason, count in self.num_rejected.items()}

    def restore(self, counters: Mapping[str, float], num_items: int) -> None:
        """Go on where `counters` were taken, with the `num_items` that are there now.

        What is missing of those that were there then counts as evicted.
        """
        for name, kind in _LEDGER_COUNTERS.items():
            setattr(self, name, kind(counters.get(name, 0)))
        for reason in REJECT_REASONS:
            self.num_rejected[reason] = int(counters.get(_REJECTED + reason, 0))
        gone = self.num_sampled_out + sum(self.num_rejected.values())
        self.num_inserted = max(self.num_inserted, gone + num_items)
        self.num_evicted = self.num_inserted - gone - num_items


_LEDGER_COUNTERS: dict[str, type[int] | type[float]] = {
    counter.name: float if counter.name.endswith("_s") else int
    for counter in fields(Ledger)
    if counter.name != "num_rejected"
}
_REJECTED = "num_rejected_"


def table_stats(
    name: str,
    settings: AnyTable,
    ledger: Ledger,
    *,
    num_items: int,
    num_bytes: int,
    ram_bytes: int,
    priority_mass: float,
) -> TableStats:
    """A table's `stats`: what it holds, and its ledger."""
    return TableStats(
        table=name,
        kind=settings.kind,
        durability="",
        degraded="",
        num_items=num_items,
        num_bytes=num_bytes,
        ram_bytes=ram_bytes,
        disk_bytes=0,
        max_items=settings.max_items,
        max_bytes=settings.max_bytes,
        priority_mass=priority_mass,
        num_inserted=ledger.num_inserted,
        num_sampled_out=ledger.num_sampled_out,
        num_evicted=ledger.num_evicted,
        num_rejected=sum(ledger.num_rejected.values()),
        num_corrupt=ledger.num_corrupt,
        num_duplicates=ledger.num_duplicates,
        num_insert_timeouts=ledger.num_insert_timeouts,
        num_sample_timeouts=ledger.num_sample_timeouts,
        num_samples=ledger.num_samples,
        num_priorities_updated=ledger.num_priorities_updated,
        num_priorities_gone=ledger.num_priorities_gone,
        num_insert_waits=ledger.num_insert_waits,
        num_sample_waits=ledger.num_sample_waits,
        insert_wait_s=ledger.insert_wait_s,
        sample_wait_s=ledger.sample_wait_s,
        unrolls=getattr(settings, "unrolls", 1),
    )


class EventSink(Protocol):
    """Where a table tells what happens to it: its journal."""

    def record(self, event: Event) -> asyncio.Future[None] | None:
        """Called in the moment of the change, on the event loop.

        The future is done once the event is as safe as the table's durability promises; None: it is already.
        """
        ...


class NoJournal:
    """The sink of a table that keeps no event log: `memory`."""

    def record(self, event: Event) -> None:
        return None


class Table(Protocol):
    """A bounded store of items."""

    ledger: Ledger
    # Of a queue nothing: its items bring all they are.
    arrivals: Arrivals

    @property
    def insert_timeout_s(self) -> float: ...

    @property
    def sample_timeout_s(self) -> float: ...

    @property
    def num_items(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def oldest_key(self) -> int:
        """Every item with a smaller key is gone; the next key if there is none at all."""
        ...

    def check(self, insertion: Insertion) -> None:
        """Raises InvalidArgumentError or LimitError for what this table can never store."""
        ...

    async def insert(self, insertion: Insertion, timeout_s: float) -> bool:
        """Waits for its turn; False if it did not come in time. Cancel at will.

        Raises UnavailableError once inserts have stopped.
        """
        ...

    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> Sampled:
        """At most `num_items` items and `max_bytes` of payloads and overhead, yet one if there is any.

        None if none came in time. `num_items` 0: only the state, at once. Cancel at will: whoever is
        cancelled while it waits has taken nothing. Raises UnavailableError once samples have stopped.
        """
        ...

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> PrioritiesUpdated:
        """Raises FailedPreconditionError if the table has no priorities."""
        ...

    def stats(self) -> TableStats:
        """`durability`, `degraded` and `disk_bytes` are filled in by the shard."""
        ...

    def stop_inserts(self) -> None:
        """Ends waiting inserts and refuses new ones, for good."""
        ...

    def stop_samples(self) -> None:
        """Ends waiting samples and refuses new ones, for good."""
        ...

    # For storage.

    def save(self) -> TableState:
        """All but the payloads; `signature` and `lives` are filled in by the shard. Quick: copies arrays."""
        ...

    def items_from(self, key: int, below: int | None = None) -> list[Inserted]:
        """The items that are there with this key or a higher one, in ascending order: what a snapshot adds.

        With `below` only those with a smaller key than that: many at once would stop the loop for too long.
        """
        ...

    def restore(self, state: TableState, items: list[Inserted]) -> None:
        """Begin anew with what `save` returned once, and with the items that were found of it.

        `items` may hold keys that are not in `state.keys`: those are gone. Keys of the state whose item was
        not found count as corrupt. Called once, before anything else.
        """
        ...

    def apply(self, event: Event) -> None:
        """Let an event of the journal happen again, after `restore`. Nothing is recorded."""
        ...
