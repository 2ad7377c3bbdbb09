"""One shard as a `ReplayWriter` sees it: what it was given and has not answered, in order of sending.

Made by `ReplayWriter`, one per shard, on its event loop. Which shard gets what is the writer's to decide; a
link sends, resends after a break and for as long as the shard says that the append is pending there, and
reports every answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.clients.replay_shard import Ack, Append, AppendStream, Outcome, ReplayShardClient
from shoal.errors import ShoalError, UnavailableError
from shoal.records import ArraySpec, Life
from shoal.rpc.addresses import Address
from shoal.sharding import Link

# A shard that owes an answer for this long gets new appends only if all others do so too.
QUIET_S = 1.0


@dataclass(slots=True, eq=False)
class Entry:
    """An append on its way to some shard."""

    append: Append
    stream: int | None
    num_sends: int = 0

    @property
    def sequence(self) -> int:
        return self.append.sequence

    @property
    def num_bytes(self) -> int:
        return self.append.num_bytes


class Owner(Protocol):
    """What a link tells its writer."""

    def settle(self, link: WriterLink, entry: Entry, ack: Ack) -> None: ...

    def on_pending(self, entry: Entry) -> None: ...

    def on_live(self) -> None: ...

    def on_resent(self) -> None: ...

    def on_silent(self, link: WriterLink) -> None: ...


class WriterLink(Link):
    """The appends of one life to one table of one shard."""

    def __init__(
        self,
        address: Address,
        client: ReplayShardClient,
        life: Life,
        table: str,
        declared: Sequence[ArraySpec],
        failover_after_s: float,
        owner: Owner,
    ) -> None:
        super().__init__(address)
        self._client = client
        self._life = life
        self._table = table
        self._declared = declared
        self._failover_after_s = failover_after_s
        self._owner = owner
        self._queue: deque[Entry] = deque()
        self._sent: deque[Entry] = deque()
        self._bytes = 0
        self._full_until = 0.0
        self._wake = asyncio.Event()

    @property
    def finished(self) -> bool:
        return self.leaving and not self._queue and not self._sent

    @property
    def bytes_due(self) -> int:
        oldest = self._sent or self._queue
        return oldest[0].num_bytes if oldest else 0

    @property
    def reluctant(self) -> bool:
        """Slow to answer, or it had no room or a disk in trouble lately."""
        return self.silent_for_s() > QUIET_S or self._loop.time() < self._full_until

    def load(self) -> tuple[bool, int]:
        """Less is better."""
        return self.reluctant, self._bytes

    def leave(self) -> None:
        super().leave()
        self._end_if_finished()

    def rejoin(self) -> None:
        super().rejoin()
        if self.live:
            self._owner.on_live()

    def take(self, entry: Entry) -> None:
        """Send this, after what it was given before."""
        self._queue.append(entry)
        self._bytes += entry.num_bytes
        self.expect()
        self._wake.set()

    def surrender(self) -> list[Entry]:
        """Give up everything, and the connection with it: its answers no longer count."""
        # What was sent again may have been overtaken.
        entries = sorted([*self._sent, *self._queue], key=lambda entry: entry.sequence)
        self._sent.clear()
        self._queue.clear()
        self._bytes = 0
        self.heard(more=False)
        self.break_off("it was silent for too long")
        return entries

    def on_silent(self) -> None:
        self._owner.on_silent(self)

    async def session(self) -> None:
        try:
            async with asyncio.timeout(self._failover_after_s):
                stream = await self._client.open_append(self._life, self._table, self._declared)
        except TimeoutError:
            raise UnavailableError(f"no answer to a hello within {self._failover_after_s} s") from None
        try:
            self._queue.extendleft(reversed(self._sent))
            self._sent.clear()
            # That it accepts is a sign: it has its time again to answer for what it is sent now.
            self.heard(more=bool(self._queue))
            self.established()
            self._owner.on_live()
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
                    if entry.num_sends:
                        self._owner.on_resent()
                    entry.num_sends += 1
                    await stream.send(entry.append)
                self._wake.clear()
                await self._wake.wait()
        except ShoalError:
            # The receiver learns the reason, after the acks that are still on their way.
            return

    async def _receive(self, stream: AppendStream) -> None:
        while True:
            ack = await stream.receive()
            if not self._sent or self._sent[0].sequence != ack.sequence:
                raise UnavailableError(f"it answered for append {ack.sequence}, which is not the next one")
            entry = self._sent.popleft()
            late = ack.outcome in (Outcome.TIMED_OUT, Outcome.PENDING)
            self._full_until = self._loop.time() + entry.append.timeout_s if late else 0.0
            if ack.outcome is Outcome.PENDING:
                self._send_again(entry)
                self._owner.on_pending(entry)
                continue
            self._bytes -= entry.num_bytes
            self.heard(more=bool(self._sent or self._queue))
            self._owner.settle(self, entry, ack)
            self._end_if_finished()

    def _send_again(self, entry: Entry) -> None:
        """It may be stored here: another shard would store it a second time."""
        before = sum(1 for queued in self._queue if queued.sequence < entry.sequence)
        self._queue.insert(before, entry)
        self.heard(more=True)
        self._wake.set()

    def _end_if_finished(self) -> None:
        if self.finished:
            self.break_off("it is no longer listed")
