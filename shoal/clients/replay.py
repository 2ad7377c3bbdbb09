"""The seam between replay shards and those who append and sample.

`ReplayShardClient` is one shard. `shoal.clients.replay_grpc` reaches a server;
`InProcessReplayClient` calls a `ReplayBackend` (the server's own shard) directly. Both pass the same
conformance tests. `ReplayWriter` and `ReplaySampler` spread the work over shards and only know this
protocol. Everything here runs on the process's one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from shoal.records import Item, Life


class Outcome(Enum):
    """What became of an appended item."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Ack:
    sequence: int
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Sampled:
    """Items of one sample request (none if it timed out) and the table's state after it."""

    items: tuple[Item, ...]
    num_items: int
    num_bytes: int
    priority_mass: float


@dataclass(frozen=True)
class TableStats:
    """The ledger of one table: inserted = stored (num_items) + sampled_out + evicted."""

    table: str
    kind: str
    num_items: int
    num_bytes: int
    max_items: int
    max_bytes: int
    num_inserted: int
    num_sampled_out: int
    num_evicted: int
    num_rejected: int
    num_duplicates: int
    num_insert_timeouts: int
    insert_wait_s: float
    sample_wait_s: float


@dataclass(frozen=True)
class PrioritiesUpdated:
    num_updated: int
    num_gone: int


class AppendStream(Protocol):
    """Appends of one life to one table of one shard. One sender and one receiver at a time."""

    async def send(self, sequence: int, payload: bytes, timeout_s: float) -> None: ...

    async def receive(self) -> Ack:
        """The ack of the oldest item not yet answered. Raises UnavailableError on a break."""
        ...

    async def close(self) -> None: ...


class SampleStream(Protocol):
    """Samples of one table of one shard. One requester and one receiver at a time."""

    async def request(self, num_items: int, timeout_s: float) -> None: ...

    async def receive(self) -> Sampled:
        """The answer to the oldest request not yet answered. Raises UnavailableError on a break."""
        ...

    async def close(self) -> None: ...


class ReplayShardClient(Protocol):
    """One replay shard."""

    async def open_append(self, life: Life, table: str) -> AppendStream: ...

    async def open_sample(self, table: str) -> SampleStream: ...

    async def update_priorities(
        self, table: str, keys: Sequence[int], priorities: Sequence[float]
    ) -> PrioritiesUpdated: ...

    async def stats(self) -> tuple[TableStats, ...]: ...

    async def close(self) -> None: ...


class ReplayBackend(Protocol):
    """What a shard offers to its servicer and to the in-process client."""

    def check_table(self, table: str) -> None:
        """Raises NotFoundError with the names that exist."""
        ...

    async def append(
        self, life: Life, table: str, sequence: int, payload: bytes, timeout_s: float
    ) -> Ack: ...

    async def sample(self, table: str, num_items: int, timeout_s: float) -> Sampled: ...

    def update_priorities(
        self, table: str, keys: Sequence[int], priorities: Sequence[float]
    ) -> PrioritiesUpdated: ...

    def stats(self) -> tuple[TableStats, ...]: ...
