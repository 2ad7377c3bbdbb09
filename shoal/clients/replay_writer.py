"""Appends trajectories to whichever shards are there, and keeps each one until a shard has acked it.

Used by actors and by `shoal.clients.replay`, on their event loop. An append goes to the live shard with the
fewest unacked bytes, or to the one that had its stream last, and stays with it: when the connection breaks,
what is unacked is sent again in order, and the shard drops repeats (`shoal.clients.replay_writer_link`). Of a
stream one append is under way at a time, so that none overtakes another, whatever becomes of it.
Only a shard that gives no sign for `failover_after_s`, and for as long as its oldest append takes on a slow
link, loses its appends to the others; one that it stored just before it fell silent is then stored twice,
on two shards.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.clients.replay_shard import (
    DEFAULT_TIMEOUT_S,
    SEQUENCE_WINDOW,
    Ack,
    Append,
    Outcome,
    ReplayShardClient,
)
from shoal.clients.replay_writer_link import Entry, WriterLink
from shoal.config.connections import RpcSection
from shoal.config.tree import ActorSection
from shoal.errors import InvalidArgumentError, UnavailableError, fresh
from shoal.records import ArraySpec, Life
from shoal.rpc.addresses import Address
from shoal.sharding import Directory, LinkSet

log = logging.getLogger(__name__)

# A stream waits for its turn at one shard no longer than this: the next may have room.
STREAM_TIMEOUT_S = 0.5

Connect = Callable[[Address], ReplayShardClient]


@dataclass(slots=True)
class WriterStats:
    """What became of the appends of this life; plain counters, for metrics."""

    num_acked: int = 0
    num_rejected: int = 0
    num_timed_out: int = 0
    num_resent: int = 0
    num_moved: int = 0
    # Why the newest of the rejected ones was.
    last_rejection: str = ""


@dataclass(slots=True, eq=False)
class _Waiter:
    payloads: tuple[bytes, ...]
    priorities: np.ndarray | None
    stream: int | None
    accepted: asyncio.Future[None]


class ReplayWriter:
    """The appends of one life to one table. `start`, then `append`, at the end `flush` and `close`."""

    def __init__(
        self,
        directory: Directory,
        connect: Connect,
        life: Life,
        table: str,
        actor: ActorSection,
        rpc: RpcSection,
        declared: Sequence[ArraySpec] = (),
    ) -> None:
        """`declared`: what is known of the columns, `num_categories` above all; every shard is told."""
        self.stats = WriterStats()
        self._max_items = actor.max_unacked_items
        self._max_bytes = actor.max_unacked_bytes
        self._unacked: dict[int, Entry] = {}
        self._unacked_bytes = 0
        self._waiters: deque[_Waiter] = deque()
        self._flushers: set[asyncio.Future[None]] = set()
        # Appends without a shard: none is live.
        self._homeless: deque[Entry] = deque()
        # The shard that had a stream last.
        self._homes: dict[int, Address] = {}
        # Streams with an append under way: that one, and those that wait for it to be answered.
        self._lines: dict[int, deque[Entry]] = {}
        self._next_sequence = 0
        # Each life begins with another shard: streams that stay would otherwise all be with the first one.
        self._turn = itertools.count(zlib.crc32(f"{life.actor_id}/{life.run_id}".encode()))
        self._failure: BaseException | None = None
        # An append that is merely waiting is answered well before its shard counts as silent.
        self._insert_timeout_s = actor.failover_after_s / 2
        self._stream_timeout_s = min(self._insert_timeout_s, STREAM_TIMEOUT_S)
        self._links: LinkSet[WriterLink] = LinkSet(
            directory,
            lambda address: WriterLink(
                address, connect(address), life, table, declared, actor.failover_after_s, self
            ),
            self._fail,
            silent_after_s=actor.failover_after_s,
            max_backoff_s=rpc.max_backoff_s,
        )

    def start(self) -> None:
        """Begin to dial. From the event loop."""
        self._links.start()

    @property
    def num_unacked(self) -> int:
        """Appends that no shard has answered for."""
        return len(self._unacked)

    @property
    def failure(self) -> BaseException | None:
        """What ended it, if something has: nothing more is sent."""
        return self._failure

    async def append(
        self,
        payloads: bytes | Sequence[bytes],
        priorities: np.ndarray | Sequence[float] | None = None,
        stream: int | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Take over serialised trajectories, stored as a whole or not at all; waits while the window is full.

        `priorities`: see `Append`. Appends with the same `stream` are stored in order, on the same shard as
        long as that is there and willing, so that what belongs together stays together; each stream that was
        ever named is remembered.

        Raises the UserError of a shard that refuses us, such as a wrong token or an unknown table, and
        UnavailableError if there is no room within `timeout_s` (None: as long as it takes): then it was not
        taken. A caller that is cancelled may or may not have appended.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        together = (payloads,) if isinstance(payloads, bytes) else tuple(payloads)
        if not together:
            raise InvalidArgumentError("an append without a trajectory: give at least one")
        waiter = _Waiter(together, _checked(priorities), stream, accepted)
        if not self._waiters and self._has_room(waiter):
            self._accept(waiter)
            return
        self._waiters.append(waiter)
        try:
            # Not `asyncio.timeout`: an append that is taken while the time runs out is taken.
            await asyncio.wait([accepted], timeout=timeout_s)
            if accepted.done():
                return accepted.result()
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._admit()
        raise UnavailableError(
            f"no room for another append within {timeout_s:g} s, {self.num_unacked} are not acked: "
            "are the shards there, with room?"
        )

    async def flush(self, timeout_s: float) -> int:
        """Wait until everything is acked or rejected. Returns how many appends are not, when time is up."""
        if self._unacked and self._failure is None:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushers.add(flushed)
            try:
                await asyncio.wait([flushed], timeout=timeout_s)
            finally:
                self._flushers.discard(flushed)
        return len(self._unacked)

    async def close(self) -> None:
        """Drop the connections and whatever is not acked. Callers that wait in `append` are refused."""
        self._fail(UnavailableError("the replay writer is closed"))
        await self._links.close()

    # What links call.

    def settle(self, link: WriterLink, entry: Entry, ack: Ack) -> None:
        """The shard answered for an append."""
        if ack.outcome is Outcome.TIMED_OUT:
            self.stats.num_timed_out += 1
            self.assign(entry)
            return
        if ack.outcome is Outcome.REJECTED:
            self._count_rejection(link, entry, ack.reason)
        else:
            self.stats.num_acked += 1
        del self._unacked[entry.sequence]
        self._unacked_bytes -= entry.num_bytes
        self._let_next_go(entry)
        self._admit()
        if not self._unacked:
            self._wake_flushers()

    def assign(self, entry: Entry) -> None:
        """Give an append to the best live shard, or keep it until one is live."""
        candidates = [link for link in self._links if link.live and not link.leaving]
        if not candidates:
            self._homeless.append(entry)
            return
        best = self._home(entry, candidates)
        if best is None:
            # Ties go round: min takes the first, so each time another one is first.
            first = next(self._turn) % len(candidates)
            best = min(candidates[first:] + candidates[:first], key=lambda link: link.load())
        if entry.stream is not None:
            self._homes[entry.stream] = best.address
        best.take(entry)

    def on_pending(self, entry: Entry) -> None:
        """An append is not yet safe; its shard keeps it. It has its place, so its stream goes on."""
        self.stats.num_timed_out += 1
        self._let_next_go(entry)

    def on_live(self) -> None:
        """A shard is there: appends without one can go."""
        homeless = self._homeless
        self._homeless = deque()
        for entry in homeless:
            self.assign(entry)

    def on_resent(self) -> None:
        self.stats.num_resent += 1

    def on_silent(self, link: WriterLink) -> None:
        """A shard is silent: the others get its appends. Without another it keeps them, for a new stream."""
        if not any(other.live and not other.leaving for other in self._links if other is not link):
            link.break_off("it was silent for too long")
            return
        entries = link.surrender()
        log.warning(
            "shard %s is silent: %d unacked trajectories go to other shards",
            link.address.target,
            len(entries),
        )
        self.stats.num_moved += len(entries)
        for entry in entries:
            self.assign(entry)

    def _home(self, entry: Entry, candidates: list[WriterLink]) -> WriterLink | None:
        """The shard that had this append's stream last, if that is there and willing."""
        if entry.stream is None or (home := self._homes.get(entry.stream)) is None:
            return None
        return next((link for link in candidates if link.address == home and not link.reluctant), None)

    def _let_next_go(self, entry: Entry) -> None:
        """Nothing of its stream has to wait for this append any longer."""
        if entry.stream is None or (line := self._lines.get(entry.stream)) is None or line[0] is not entry:
            return
        line.popleft()
        if line:
            self.assign(line[0])
        else:
            del self._lines[entry.stream]

    def _has_room(self, waiter: _Waiter) -> bool:
        if not self._unacked:
            # An append larger than the whole window goes alone.
            return True
        oldest = next(iter(self._unacked))
        return (
            len(self._unacked) < self._max_items
            and self._unacked_bytes + sum(map(len, waiter.payloads)) <= self._max_bytes
            and self._next_sequence - oldest < SEQUENCE_WINDOW
        )

    def _accept(self, waiter: _Waiter) -> None:
        stream = waiter.stream
        timeout_s = self._insert_timeout_s if stream is None else self._stream_timeout_s
        entry = Entry(Append(self._next_sequence, waiter.payloads, waiter.priorities, timeout_s), stream)
        self._next_sequence += 1
        self._unacked[entry.sequence] = entry
        self._unacked_bytes += entry.num_bytes
        if stream is not None:
            line = self._lines.setdefault(stream, deque())
            line.append(entry)
            if line[0] is not entry:
                return
        self.assign(entry)

    def _admit(self) -> None:
        while self._waiters and self._failure is None and self._has_room(self._waiters[0]):
            waiter = self._waiters.popleft()
            self._accept(waiter)
            if not waiter.accepted.done():
                waiter.accepted.set_result(None)

    def _count_rejection(self, link: WriterLink, entry: Entry, reason: str) -> None:
        stats = self.stats
        stats.num_rejected += 1
        stats.last_rejection = reason
        # At 1, 2, 4, 8, ...: a writer whose every append is refused must not fill the log.
        if stats.num_rejected & (stats.num_rejected - 1) == 0:
            log.error(
                "shard %s rejected trajectory %d (%d bytes), %d so far: %s",
                link.address.target,
                entry.sequence,
                entry.num_bytes,
                stats.num_rejected,
                reason,
            )

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        for waiter in self._waiters:
            if not waiter.accepted.done():
                waiter.accepted.set_exception(fresh(self._failure))
        self._wake_flushers()

    def _wake_flushers(self) -> None:
        for flushed in self._flushers:
            if not flushed.done():
                flushed.set_result(None)


def _checked(priorities: np.ndarray | Sequence[float] | None) -> np.ndarray | None:
    """A flat copy: it is sent later. Whether there are as many as the table needs is the shard's to say."""
    if priorities is None:
        return None
    with np.errstate(over="ignore"):
        flat = np.array(priorities, np.float32).ravel()
    wrong = flat[~(np.isfinite(flat) & (flat >= 0))]
    if wrong.size:
        raise InvalidArgumentError(
            f"priority {wrong[0]} is not a finite number of at least 0 (float32): mend what computes it"
        )
    return flat
