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

# How far sequences of one life may be spread: an unacked item is always less than this below the newest one.
# The writer keeps to it and the shard remembers as much, so that "below the window" means "acked before".
SEQUENCE_WINDOW = 1 << 14

# Reserved in the answer to a sample: for what it says of the table, and for each item's identity (two ids of
# 128 characters) besides its payload.
RESPONSE_OVERHEAD_BYTES = 1024
ITEM_OVERHEAD_BYTES = 2048


def max_item_bytes(max_message_bytes: int) -> int:
    """The largest payload that is stored: it must fit into the answer that hands it out."""
    return max_message_bytes - RESPONSE_OVERHEAD_BYTES - ITEM_OVERHEAD_BYTES


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
    """Appends of one life to one table of one shard. One sender and one receiver at a time.

    Items are stored in the order sent, whether or not somebody receives.
    """

    async def send(self, sequence: int, payload: bytes, timeout_s: float = 0.0) -> None:
        """Waits while too much is on its way. Raises as `receive` does. `timeout_s` 0: the table's own."""
        ...

    async def receive(self) -> Ack:
        """The ack of the oldest item not yet answered.

        Raises UnavailableError on a break, or a UserError if the shard refuses the stream.
        """
        ...

    async def close(self) -> None:
        """Ends the stream; what was not acked may or may not be stored."""
        ...


class SampleStream(Protocol):
    """Samples of one table of one shard. One requester and one receiver at a time."""

    async def request(self, num_items: int, timeout_s: float = 0.0) -> None:
        """Raises as `receive` does. `timeout_s` 0: the table's own."""
        ...

    async def receive(self) -> Sampled:
        """The answer to the oldest request not yet answered.

        Raises UnavailableError on a break, or a UserError if the shard refuses the stream or a request.
        """
        ...

    async def close(self) -> None: ...


class ReplayShardClient(Protocol):
    """One replay shard."""

    async def open_append(self, life: Life, table: str) -> AppendStream:
        """Returns once the shard has accepted. Raises UnavailableError, or a UserError if refused."""
        ...

    async def open_sample(self, table: str) -> SampleStream:
        """Raises UnavailableError; the first `receive` tells of an unknown table."""
        ...

    async def update_priorities(
        self, table: str, keys: Sequence[int], priorities: Sequence[float]
    ) -> PrioritiesUpdated: ...

    async def stats(self) -> tuple[TableStats, ...]: ...

    async def close(self) -> None: ...


class ReplayBackend(Protocol):
    """What a shard offers to its servicer and to the in-process client.

    `timeout_s` 0 is the table's default; `waited_s` of it have passed already. Everything raises
    NotFoundError for an unknown table and UnavailableError while the shard drains.
    """

    def check_append(self, life: Life, table: str) -> None:
        """Raises what `append` of this life to this table would raise."""
        ...

    async def append(
        self,
        life: Life,
        table: str,
        sequence: int,
        payload: bytes,
        timeout_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> Ack: ...

    async def sample(
        self, table: str, num_items: int, timeout_s: float = 0.0, waited_s: float = 0.0
    ) -> Sampled:
        """Up to `num_items` items, at least one unless the time passes."""
        ...

    def update_priorities(
        self, table: str, keys: Sequence[int], priorities: Sequence[float]
    ) -> PrioritiesUpdated: ...

    def stats(self) -> tuple[TableStats, ...]: ...
