"""The seam between one replay shard and those who append and sample. Users start at `shoal.clients.replay`.

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

import numpy as np

from shoal.records import ArraySpec, Episode, Item, Life, Transitions

# How far sequences of one life may be spread: an unacked item is always less than this below the newest one.
# The writer keeps to it and the shard remembers as much, so that "below the window" means "acked before".
SEQUENCE_WINDOW = 1 << 14

# Reserved in the answer to a sample: for what it says of the table and of episodes, and for each item's
# identity (two ids of 128 characters) besides its payload.
RESPONSE_OVERHEAD_BYTES = 8192
ITEM_OVERHEAD_BYTES = 2048


# What a trajectory takes in an append besides its bytes: tag and length.
PAYLOAD_OVERHEAD_BYTES = 6
# Episodes that an answer to a sample tells of at most, and that a table remembers: the newest.
MAX_EPISODES = 256
# How long calls of a library's user wait that name no other time.
DEFAULT_TIMEOUT_S = 60.0


def max_item_bytes(max_message_bytes: int) -> int:
    """The largest payload that is stored: it must fit into the answer that hands it out."""
    return max_message_bytes - RESPONSE_OVERHEAD_BYTES - ITEM_OVERHEAD_BYTES


class Outcome(Enum):
    """What became of an appended item."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    # Perhaps stored here and not yet safe: only to be sent again to the same shard.
    PENDING = "pending"


@dataclass(frozen=True)
class Ack:
    sequence: int
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Append:
    """What one request appends under one sequence number: stored as a whole or not at all.

    `priorities` (float32, before alpha) is None or complete: for a sequence table one per payload, for a
    transition table one per step [T, E] of each payload in turn. `timeout_s` 0: the table's own.
    """

    sequence: int
    payloads: tuple[bytes, ...]
    priorities: np.ndarray | None = None
    timeout_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.payloads))


@dataclass(frozen=True)
class Sampled:
    """Answer to one sample request, and the table that it was taken from, before that changed it.

    `items` from a queue or sequence table, `transitions` from a transition table; none if it timed out.
    """

    items: tuple[Item, ...]
    transitions: Transitions | None
    num_items: int
    num_bytes: int
    priority_mass: float
    # What has come into a sampled table since the stream's last answer.
    steps_inserted: int = 0
    episodes: tuple[Episode, ...] = ()

    @property
    def num_sampled(self) -> int:
        return len(self.items) if self.transitions is None else len(self.transitions)


@dataclass(frozen=True)
class TableStats:
    """One table: inserted = stored (num_items) + sampled_out + evicted + rejected. See the proto."""

    table: str
    kind: str
    durability: str
    degraded: str
    num_items: int
    num_bytes: int
    ram_bytes: int
    disk_bytes: int
    max_items: int
    max_bytes: int
    priority_mass: float
    num_inserted: int
    num_sampled_out: int
    num_evicted: int
    num_rejected: int
    num_corrupt: int
    num_duplicates: int
    num_insert_timeouts: int
    num_sample_timeouts: int
    num_samples: int
    num_priorities_updated: int
    num_priorities_gone: int
    num_insert_waits: int
    num_sample_waits: int
    insert_wait_s: float
    sample_wait_s: float
    unrolls: int


@dataclass(frozen=True)
class PrioritiesUpdated:
    num_updated: int
    num_gone: int


class AppendStream(Protocol):
    """Appends of one life to one table of one shard. One sender and one receiver at a time.

    Items are stored in the order sent, whether or not somebody receives.
    """

    async def send(self, append: Append) -> None:
        """Waits while too much is on its way. Raises as `receive` does."""
        ...

    async def receive(self) -> Ack:
        """The ack of the oldest append not yet answered.

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

    async def open_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> AppendStream:
        """Returns once the shard has accepted. `declared`: what is known of the columns beforehand.

        Raises UnavailableError, or a UserError if refused.
        """
        ...

    async def open_sample(self, table: str) -> SampleStream:
        """Raises UnavailableError; the first `receive` tells of an unknown table."""
        ...

    async def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray
    ) -> PrioritiesUpdated: ...

    async def stats(self) -> tuple[TableStats, ...]: ...

    async def close(self) -> None: ...


class PendingAck(Protocol):
    """An append that has its place in the table, or was refused."""

    async def ack(self) -> Ack:
        """Waits until it is as safe as the table's durability promises, or its time is up."""
        ...


class SampleBackend(Protocol):
    """The samples of one stream, each with what has come into the table since the one before."""

    async def sample(
        self, table: str, num_items: int, timeout_s: float = 0.0, waited_s: float = 0.0
    ) -> Sampled:
        """Up to `num_items` items, at least one unless the time passes. 0: only the table's state."""
        ...


class ReplayBackend(Protocol):
    """What a shard offers to its servicer and to the in-process client.

    `timeout_s` 0 is the table's default; `waited_s` of it have passed already. Everything raises
    NotFoundError for an unknown table and UnavailableError while the shard drains.
    """

    def check_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> None:
        """Raises what `append` of this life to this table would raise.

        FailedPreconditionError if what the table knows of a declared column differs, with both.
        """
        ...

    async def append(
        self,
        life: Life,
        table: str,
        append: Append,
        waited_s: float = 0.0,
        declared: Sequence[ArraySpec] = (),
    ) -> Ack:
        """`declared`: what the stream that it came on declared; all of it counts with the first insert."""
        ...

    async def begin_append(
        self,
        life: Life,
        table: str,
        append: Append,
        waited_s: float = 0.0,
        declared: Sequence[ArraySpec] = (),
    ) -> PendingAck:
        """The first half of `append`: returns when it is stored or refused, though perhaps not yet safe.

        So the next one of the same stream can be stored while the disk is busy with this one.
        """
        ...

    def open_sample(self) -> SampleBackend: ...

    def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray
    ) -> PrioritiesUpdated: ...

    def stats(self) -> tuple[TableStats, ...]: ...
