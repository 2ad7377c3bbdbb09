"""Takes items from all shards of the replay, a few ahead, whichever shard has one.

Used by the learner, on its event loop. Each shard has at most `prefetch_items` items asked for or waiting
here: a slow consumer holds back every shard, a fast one never waits for a shard that is empty or away while
another has items.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.clients.replay_shard import DEFAULT_TIMEOUT_S, ReplayShardClient, SampleStream
from shoal.config.connections import RpcSection
from shoal.errors import FailedPreconditionError, ShoalError, UnavailableError, fresh
from shoal.records import Item
from shoal.rpc.addresses import Address
from shoal.sharding import Directory, Link, LinkSet

# How long a shard without items keeps a request before it says so.
SAMPLE_TIMEOUT_S = 2.0
# A shard that does not even say so is given up. Long enough for the largest message on a slow link, of which
# nothing shows here before it is complete; a dead connection is noticed earlier, by its keepalive.
SILENT_AFTER_S = 60.0

Connect = Callable[[Address], ReplayShardClient]


class ReplaySampler:
    """The samples of one table. `start`, then `next` for ever, at the end `close`."""

    def __init__(
        self, directory: Directory, connect: Connect, table: str, prefetch_items: int, rpc: RpcSection
    ) -> None:
        # In order of arrival, which is fair: no shard has more than its share here. None: see `_failure`.
        self._ready: asyncio.Queue[tuple[_SamplerLink, Item] | None] = asyncio.Queue()
        self._failure: BaseException | None = None
        self._links: LinkSet[_SamplerLink] = LinkSet(
            directory,
            lambda address: _SamplerLink(address, connect(address), table, prefetch_items, self),
            self._fail,
            silent_after_s=SILENT_AFTER_S,
            max_backoff_s=rpc.max_backoff_s,
        )

    def start(self) -> None:
        """Begin to dial. From the event loop."""
        self._links.start()

    async def next(self, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> Item:
        """The next item, from whichever shard has one. Cancel at will: nothing is lost.

        Raises UnavailableError if there is none within `timeout_s` (None: as long as it takes), and the
        UserError of a shard that refuses us, such as a wrong token or an unknown table.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        try:
            async with asyncio.timeout(timeout_s):
                taken = await self._ready.get()
        except TimeoutError:
            raise UnavailableError(
                f"no item within {timeout_s} s: are the shards there, with items?"
            ) from None
        if taken is None:
            # For whoever else waits.
            self._ready.put_nowait(None)
            assert self._failure is not None
            raise fresh(self._failure)
        link, item = taken
        link.consumed()
        return item

    async def close(self) -> None:
        """Drop the connections and what was not taken. Callers that wait in `next` are refused."""
        self._fail(UnavailableError("the replay sampler is closed"))
        await self._links.close()

    def put(self, link: _SamplerLink, item: Item) -> None:
        """For links: an item has come."""
        self._ready.put_nowait((link, item))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._ready.put_nowait(None)


class _SamplerLink(Link):
    """One shard, with `prefetch_items` places for items that are asked for or not yet taken."""

    def __init__(
        self,
        address: Address,
        client: ReplayShardClient,
        table: str,
        prefetch_items: int,
        sampler: ReplaySampler,
    ) -> None:
        super().__init__(address)
        self._client = client
        self._table = table
        self._free = prefetch_items
        self._in_flight = 0
        self._sampler = sampler
        self._wake = asyncio.Event()

    def consumed(self) -> None:
        """An item of this shard was taken: its place is free."""
        self._free += 1
        self._wake.set()

    def on_silent(self) -> None:
        self.break_off(f"no answer for {SILENT_AFTER_S} s")

    async def session(self) -> None:
        stream = await self._client.open_sample(self._table)
        try:
            await self.both(self._receive(stream), self._request(stream))
        finally:
            self._free += self._in_flight
            self._in_flight = 0
            self.heard(more=False)
            await stream.close()

    async def close(self) -> None:
        await self._client.close()

    async def _request(self, stream: SampleStream) -> None:
        try:
            while True:
                while self._free:
                    self._free -= 1
                    self._in_flight += 1
                    self.expect()
                    await stream.request(1, SAMPLE_TIMEOUT_S)
                self._wake.clear()
                await self._wake.wait()
        except ShoalError:
            # The receiver learns the reason, after the items that are still on their way.
            return

    async def _receive(self, stream: SampleStream) -> None:
        while True:
            sampled = await stream.receive()
            self.established()
            self._in_flight -= 1
            self.heard(more=self._in_flight > 0)
            if sampled.transitions is not None:
                raise FailedPreconditionError(
                    f"table {self._table!r} holds transitions, which come in batches: use a BatchSampler"
                )
            if sampled.items:
                for item in sampled.items:
                    self._sampler.put(self, item)
            else:
                self.consumed()
