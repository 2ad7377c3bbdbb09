"""Lasting links to all shards of a service, one per address, dialled again for ever.

`ReplayWriter` and `ReplaySampler` build on this; what they do over a link is theirs. No gRPC here. Everything
runs on the process's one event loop, with a few tasks per link and none per message.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

from shoal.errors import UnavailableError
from shoal.rpc.addresses import Address
from shoal.rpc.backoff import Backoff

log = logging.getLogger(__name__)

# An answer that carries much, or is for much, may take longer: no link is expected to be slower than this.
SLOWEST_BYTES_PER_S = 1e6

OnChange = Callable[[tuple[Address, ...]], None]


class Directory(Protocol):
    """Where the shards are. `shoal.rpc.addresses.AddressBook` is one."""

    @property
    def current(self) -> tuple[Address, ...]:
        """The addresses known now; may be empty."""
        ...

    async def watch(self, on_change: OnChange) -> None:
        """Runs for ever; `on_change` gets each list that differs from what `current` was before."""
        ...


class Link(ABC):
    """A connection to one shard that is made again whenever it breaks."""

    def __init__(self, address: Address) -> None:
        self.address = address
        # The shard has accepted this connection.
        self.live = False
        # No longer in the directory: finish what was begun, take on nothing new.
        self.leaving = False
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._silent_since: float | None = None
        self._broken: asyncio.Future[None] | None = None
        self._told = False

    @abstractmethod
    async def session(self) -> None:
        """One connection, from dialling to its end. Raises UnavailableError when it breaks."""

    @abstractmethod
    def on_silent(self) -> None:
        """An answer is overdue."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the shard for good."""

    @property
    def finished(self) -> bool:
        """Nothing is left to be done over this link."""
        return self.leaving

    @property
    def bytes_due(self) -> int:
        """What has to cross the network before the next answer is here, as far as that is known."""
        return 0

    def leave(self) -> None:
        """The shard is no longer listed."""
        self.leaving = True

    def rejoin(self) -> None:
        """It is listed again."""
        self.leaving = False

    def expect(self) -> None:
        """An answer is due from now on."""
        if self._silent_since is None:
            self._silent_since = self._loop.time()

    def heard(self, *, more: bool) -> None:
        """The shard answered; `more` answers are due."""
        self._silent_since = self._loop.time() if more else None

    def excuse(self, seconds: float) -> None:
        """Nobody could be heard for so long: this process stood still."""
        if self._silent_since is not None:
            self._silent_since = min(self._silent_since + seconds, self._loop.time())

    def silent_for_s(self) -> float:
        """How long an answer has been due that did not come."""
        return 0.0 if self._silent_since is None else self._loop.time() - self._silent_since

    def established(self) -> None:
        """Called by `session` once the shard has accepted or answered."""
        if not self.live:
            self.live = True
            self._told = False
            log.info("connected to shard %s", self.address.target)

    def break_off(self, reason: str) -> None:
        """End the running session, if there is one."""
        self.live = False
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(UnavailableError(reason))

    async def both(self, receiving: Coroutine[Any, Any, None], sending: Coroutine[Any, Any, None]) -> None:
        """Run the two loops of a session until one raises or the link is broken off."""
        self._broken = self._loop.create_future()
        tasks = [self._loop.create_task(receiving), self._loop.create_task(sending)]
        try:
            await asyncio.wait([*tasks, self._broken], return_when=asyncio.FIRST_EXCEPTION)
            # The receiver first: it has the shard's own reason.
            errors = [future.exception() for future in (*tasks, self._broken) if future.done()]
        finally:
            self.live = False
            self._broken.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error

    async def run(self, max_backoff_s: float) -> None:
        """Sessions, one after another, until the link is finished."""
        backoff = Backoff(max_s=max_backoff_s)
        try:
            while not self.finished:
                started = self._loop.time()
                try:
                    await self.session()
                except UnavailableError as error:
                    if not self._told and not self.finished:
                        # Once per outage: the attempts that follow fail for the same reason.
                        log.warning("shard %s is away, dialling on: %s", self.address.target, error)
                        self._told = True
                self.live = False
                if self._loop.time() - started > max_backoff_s:
                    backoff.reset()
                if not self.finished:
                    await asyncio.sleep(backoff.next_delay())
        finally:
            self.live = False
            self.closed = True
            await self.close()


LinkT = TypeVar("LinkT", bound=Link)


class LinkSet(Generic[LinkT]):
    """One link per shard of a directory."""

    def __init__(
        self,
        directory: Directory,
        make: Callable[[Address], LinkT],
        on_failure: Callable[[BaseException], None],
        *,
        silent_after_s: float,
        max_backoff_s: float,
    ) -> None:
        """`on_failure` gets what ends a link for another reason than a break, such as a refusal."""
        self._directory = directory
        self._make = make
        self._on_failure = on_failure
        self._silent_after_s = silent_after_s
        self._max_backoff_s = max_backoff_s
        self._links: dict[Address, LinkT] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[LinkT]:
        return iter(tuple(self._links.values()))

    def start(self) -> None:
        self._follow(self._directory.current)
        self._spawn(self._directory.watch(self._follow))
        self._spawn(self._watch_silence())

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, addresses: tuple[Address, ...]) -> None:
        for link in self:
            if link.address in addresses:
                if link.leaving:
                    link.rejoin()
            elif not link.leaving:
                log.info("shard %s is no longer listed", link.address.target)
                link.leave()
        for address in addresses:
            known = self._links.get(address)
            if known is None or known.closed:
                self._links[address] = self._make(address)
                self._spawn(self._run(self._links[address]))

    async def _run(self, link: LinkT) -> None:
        try:
            await link.run(self._max_backoff_s)
        finally:
            if self._links.get(link.address) is link:
                del self._links[link.address]

    async def _watch_silence(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._silent_after_s / 4
        while True:
            due = loop.time() + pause_s
            await asyncio.sleep(pause_s)
            # If that took longer, answers may be here that nobody has read yet.
            late_s = loop.time() - due
            for link in self:
                link.excuse(late_s)
                if link.silent_for_s() >= self._silent_after_s + link.bytes_due / SLOWEST_BYTES_PER_S:
                    link.on_silent()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
