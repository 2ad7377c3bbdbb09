"""Keeps one group connected to an inference replica, for ever.

`connect` gives a stream; when that breaks, call it again: it dials the next replica, with back-off. A group
that is away from the replica assigned to it (after a break, or because replicas came or went) opens a stream
there in the background; once that is welcomed, `move_ready` says so and `connect` switches over.
Event loop only, one caller. Knows only the `InferenceClient` protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from services.actor.assignment import Seat
from services.actor.waiting import WaitLog
from shoal.clients.inference import ActHello, ActStream, InferenceClient
from shoal.errors import UnavailableError
from shoal.rpc.addresses import Address
from shoal.rpc.backoff import Backoff

log = logging.getLogger(__name__)

Dial = Callable[[Address], InferenceClient]


@dataclass(frozen=True)
class _Connection:
    address: Address
    client: InferenceClient
    stream: ActStream
    opened_at: float

    async def close(self) -> None:
        await self.stream.close()
        await self.client.close()


class InferenceLink:
    """The connection of one group."""

    def __init__(
        self,
        seat: Seat,
        hello: ActHello,
        replicas: Callable[[], Sequence[Address]],
        dial: Dial,
        *,
        max_backoff_s: float,
        retry_home_s: float,
        waits: WaitLog,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seat = seat
        self._hello = hello
        self._replicas = replicas
        self._dial = dial
        self._backoff = Backoff(max_s=max_backoff_s)
        self._max_backoff_s = max_backoff_s
        self._retry_home_s = retry_home_s
        self._waits = waits
        self._clock = clock
        self._sleep = sleep
        self._skip = 0
        self._current: _Connection | None = None
        self._move: asyncio.Task[_Connection | None] | None = None

    async def connect(self) -> ActStream:
        """A new stream: the one a move prepared, or the first to be had. Raises UserError."""
        if self.move_ready():
            assert self._move is not None
            connection, self._move = self._move.result(), None
            assert connection is not None
            self._skip = 0
            if self._current is not None:
                await self._current.close()
        else:
            with self._waits.waiting_for(f"inference at {_names(self._replicas())}"):
                await self._leave_broken()
                connection = await self._search()
        self._current = connection
        return connection.stream

    def move_ready(self) -> bool:
        """Whether `connect` would move the group at once. Starts preparing a move if one is due."""
        if self._move is None:
            replicas = self._replicas()
            if self._current is not None and replicas:
                home = self._seat.replica(replicas)
                if home != self._current.address:
                    self._move = asyncio.create_task(self._prepare_move(home))
            return False
        if not self._move.done():
            return False
        if self._move.exception() is None and self._move.result() is None:
            self._move = None
            return False
        return True

    async def close(self) -> None:
        await self._cancel_move()
        if self._current is not None:
            await self._current.close()
            self._current = None

    async def _leave_broken(self) -> None:
        await self._cancel_move()
        if self._current is None:
            return
        broken, self._current = self._current, None
        await broken.close()
        self._skip += 1
        if self._clock() - broken.opened_at > self._max_backoff_s:
            self._backoff.reset()
        else:
            # It broke as soon as it was open: dialling on at once would be a busy loop.
            await self._sleep(self._backoff.next_delay())

    async def _search(self) -> _Connection:
        while True:
            replicas = self._replicas()
            if replicas:
                address = self._seat.replica(replicas, self._skip)
                try:
                    return await self._open(address)
                except UnavailableError as error:
                    log.debug("group %d: %s: %s", self._seat.group, address.target, error)
                    self._skip += 1
            await self._sleep(self._backoff.next_delay())

    async def _open(self, address: Address) -> _Connection:
        client = self._dial(address)
        try:
            stream = await client.open(self._hello)
        except BaseException:
            await client.close()
            raise
        log.info("group %d acts through %s", self._seat.group, address.target)
        return _Connection(address, client, stream, self._clock())

    async def _prepare_move(self, home: Address) -> _Connection | None:
        """A stream to the group's own replica; or None, after a pause, if it does not answer."""
        try:
            return await self._open(home)
        except UnavailableError:
            await self._sleep(self._retry_home_s)
            return None

    async def _cancel_move(self) -> None:
        if self._move is None:
            return
        move, self._move = self._move, None
        move.cancel()
        await asyncio.wait({move})
        if not move.cancelled() and move.exception() is None:
            prepared = move.result()
            if prepared is not None:
                await prepared.close()


def _names(replicas: Sequence[Address]) -> str:
    names = [address.target for address in replicas]
    if not names:
        return "an address that does not resolve yet"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
