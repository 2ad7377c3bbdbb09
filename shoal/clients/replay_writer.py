"""Appends trajectories to whichever shards are there, and keeps each one until a shard has acked it.

Used by actors, on their event loop. An item goes to the live shard with the fewest unacked bytes and stays
with it: when the connection breaks, what is unacked is sent again in order, and the shard drops repeats.
Only a shard that gives no sign for `failover_after_s`, and for as long as its oldest item takes on a slow
link, loses its items to the others; an item that it stored just before it fell silent is then stored twice,
on two shards.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shoal.clients.replay import SEQUENCE_WINDOW, Ack, AppendStream, Outcome, ReplayShardClient
from shoal.config.tree import ActorSection, RpcSection
from shoal.errors import ShoalError, UnavailableError
from shoal.records import Life
from shoal.rpc.addresses import Address
from shoal.sharding import Directory, Link, LinkSet

log = logging.getLogger(__name__)

# A shard that owes an answer for this long gets new items only if all others do so too.
QUIET_S = 1.0

Connect = Callable[[Address], ReplayShardClient]


@dataclass(slots=True)
class WriterStats:
    """What became of the items of this life; plain counters, for metrics."""

    num_acked: int = 0
    num_rejected: int = 0
    num_timed_out: int = 0
    num_resent: int = 0
    num_moved: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    sequence: int
    payload: bytes
    num_sends: int = 0


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
    ) -> None:
        self.stats = WriterStats()
        self._max_items = actor.max_unacked_items
        self._max_bytes = actor.max_unacked_bytes
        self._unacked: dict[int, _Entry] = {}
        self._unacked_bytes = 0
        self._waiters: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._flushers: set[asyncio.Future[None]] = set()
        # Items without a shard: none is live.
        self._homeless: deque[_Entry] = deque()
        self._next_sequence = 0
        self._turn = itertools.count()
        self._failure: BaseException | None = None
        self._links: LinkSet[_WriterLink] = LinkSet(
            directory,
            lambda address: _WriterLink(address, connect(address), life, table, actor.failover_after_s, self),
            self._fail,
            silent_after_s=actor.failover_after_s,
            max_backoff_s=rpc.max_backoff_s,
        )

    def start(self) -> None:
        """Begin to dial. From the event loop."""
        self._links.start()

    @property
    def num_unacked(self) -> int:
        return len(self._unacked)

    async def append(self, payload: bytes) -> None:
        """Take over a serialised trajectory; waits while the window is full, in order of arrival.

        Raises the UserError of a shard that refuses us, such as a wrong token or an unknown table. A caller
        that is cancelled may or may not have appended.
        """
        if self._failure is not None:
            raise self._failure
        if not self._waiters and self._has_room(payload):
            self._accept(payload)
            return
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (payload, accepted)
        self._waiters.append(waiter)
        try:
            await accepted
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._admit()

    async def flush(self, timeout_s: float) -> int:
        """Wait until everything is acked or rejected. Returns how many items are not, when time is up."""
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

    def settle(self, link: _WriterLink, entry: _Entry, ack: Ack) -> None:
        """The shard answered for an item."""
        if ack.outcome is Outcome.TIMED_OUT:
            self.stats.num_timed_out += 1
            self.assign(entry)
            return
        if ack.outcome is Outcome.REJECTED:
            self.stats.num_rejected += 1
            if self.stats.num_rejected & (self.stats.num_rejected - 1) == 0:
                log.error(
                    "shard %s rejected trajectory %d (%d bytes), %d so far: %s",
                    link.address.target,
                    entry.sequence,
                    len(entry.payload),
                    self.stats.num_rejected,
                    ack.reason,
                )
        else:
            self.stats.num_acked += 1
        del self._unacked[entry.sequence]
        self._unacked_bytes -= len(entry.payload)
        self._admit()
        if not self._unacked:
            self._wake_flushers()

    def assign(self, entry: _Entry) -> None:
        """Give an item to the best live shard, or keep it until one is live."""
        candidates = [link for link in self._links if link.live and not link.leaving]
        if not candidates:
            self._homeless.append(entry)
            return
        # Ties go round: min takes the first, so each time another one is first.
        first = next(self._turn) % len(candidates)
        best = min(candidates[first:] + candidates[:first], key=lambda link: link.load())
        best.take(entry)

    def on_live(self) -> None:
        """A shard is there: items without one can go."""
        homeless = self._homeless
        self._homeless = deque()
        for entry in homeless:
            self.assign(entry)

    def move(self, link: _WriterLink) -> None:
        """A shard is silent: the others get its items. Without another it keeps them, for a new stream."""
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

    def _has_room(self, payload: bytes) -> bool:
        if not self._unacked:
            # An item larger than the whole window goes alone.
            return True
        oldest = next(iter(self._unacked))
        return (
            len(self._unacked) < self._max_items
            and self._unacked_bytes + len(payload) <= self._max_bytes
            and self._next_sequence - oldest < SEQUENCE_WINDOW
        )

    def _accept(self, payload: bytes) -> None:
        entry = _Entry(self._next_sequence, payload)
        self._next_sequence += 1
        self._unacked[entry.sequence] = entry
        self._unacked_bytes += len(payload)
        self.assign(entry)

    def _admit(self) -> None:
        while self._waiters and self._failure is None and self._has_room(self._waiters[0][0]):
            payload, accepted = self._waiters.popleft()
            self._accept(payload)
            if not accepted.done():
                accepted.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        for _, accepted in self._waiters:
            if not accepted.done():
                accepted.set_exception(self._failure)
        self._wake_flushers()

    def _wake_flushers(self) -> None:
        for flushed in self._flushers:
            if not flushed.done():
                flushed.set_result(None)


class _WriterLink(Link):
    """One shard: what it was given and has not answered, in order of sending."""

    def __init__(
        self,
        address: Address,
        client: ReplayShardClient,
        life: Life,
        table: str,
        failover_after_s: float,
        writer: ReplayWriter,
    ) -> None:
        super().__init__(address)
        self._client = client
        self._life = life
        self._table = table
        self._failover_after_s = failover_after_s
        # A shard that is merely full answers well before it counts as silent.
        self._insert_timeout_s = failover_after_s / 2
        self._writer = writer
        self._queue: deque[_Entry] = deque()
        self._sent: deque[_Entry] = deque()
        self._bytes = 0
        self._full_until = 0.0
        self._wake = asyncio.Event()

    @property
    def finished(self) -> bool:
        return self.leaving and not self._queue and not self._sent

    @property
    def bytes_due(self) -> int:
        oldest = self._sent or self._queue
        return len(oldest[0].payload) if oldest else 0

    def leave(self) -> None:
        super().leave()
        self._end_if_finished()

    def rejoin(self) -> None:
        super().rejoin()
        if self.live:
            self._writer.on_live()

    def load(self) -> tuple[bool, int]:
        """Less is better."""
        reluctant = self.silent_for_s() > QUIET_S or self._loop.time() < self._full_until
        return reluctant, self._bytes

    def take(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self._bytes += len(entry.payload)
        self.expect()
        self._wake.set()

    def surrender(self) -> list[_Entry]:
        """Give up everything, and the connection with it: its answers no longer count."""
        entries = [*self._sent, *self._queue]
        self._sent.clear()
        self._queue.clear()
        self._bytes = 0
        self.heard(more=False)
        self.break_off("it was silent for too long")
        return entries

    def on_silent(self) -> None:
        self._writer.move(self)

    async def session(self) -> None:
        try:
            async with asyncio.timeout(self._failover_after_s):
                stream = await self._client.open_append(self._life, self._table)
        except TimeoutError:
            raise UnavailableError(f"no answer to a hello within {self._failover_after_s} s") from None
        try:
            self._queue.extendleft(reversed(self._sent))
            self._sent.clear()
            # That it accepts is a sign: it has its time again to answer for what it is sent now.
            self.heard(more=bool(self._queue))
            self.established()
            self._writer.on_live()
            await self.both(self._receive(stream), self._send(stream))
        finally:
            await stream.close()

    async def close(self) -> None:
        await self._client.close()

    async def _send(self, stream: AppendStream) -> None:
        try:
            while True:
                while self._queue:
                    entry = self._queue.popleft()
                    # First: the ack may be there before the write returns.
                    self._sent.append(entry)
                    entry.num_sends += 1
                    self._writer.stats.num_resent += entry.num_sends > 1
                    await stream.send(entry.sequence, entry.payload, self._insert_timeout_s)
                self._wake.clear()
                await self._wake.wait()
        except ShoalError:
            # The receiver learns the reason, after the acks that are still on their way.
            return

    async def _receive(self, stream: AppendStream) -> None:
        while True:
            ack = await stream.receive()
            if not self._sent or self._sent[0].sequence != ack.sequence:
                raise UnavailableError(
                    f"it answered for trajectory {ack.sequence}, which is not the next one"
                )
            entry = self._sent.popleft()
            self._bytes -= len(entry.payload)
            self.heard(more=bool(self._sent or self._queue))
            full = ack.outcome is Outcome.TIMED_OUT
            self._full_until = self._loop.time() + self._insert_timeout_s if full else 0.0
            self._writer.settle(self, entry, ack)
            self._end_if_finished()

    def _end_if_finished(self) -> None:
        if self.finished:
            self.break_off("it is no longer listed")
