"""Replay shards in the test's process, with faults that the test switches on and off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from services.replay.dedup import Dedup
from services.replay.shard import Shard
from shoal.clients.replay_local import InProcessReplayClient
from shoal.clients.replay_shard import (
    Ack,
    Append,
    AppendStream,
    Outcome,
    PrioritiesUpdated,
    Sampled,
    SampleStream,
    TableStats,
)
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, QueueTable
from shoal.config.tree import ReplaySection
from shoal.errors import UnavailableError
from shoal.records import ArraySpec, Life
from shoal.rpc.addresses import Address


class FaultyShard:
    """A shard that can be down, silent (it works and does not answer), unsafe, or lose its answers."""

    def __init__(
        self,
        name: str = "a",
        table: AnyTable | None = None,
        make_dedup: Callable[[int], Dedup] = Dedup,
    ) -> None:
        self.address = Address(name)
        self._settings = ReplaySection(tables={"train": table or QueueTable(max_items=1000)})
        self._make_dedup = make_dedup
        self._streams: set[FaultyAppendStream | FaultySampleStream] = set()
        self.down = False
        self.silent = False
        # What it answers, a second late, for what it has stored: as if its disk took no writes.
        self.unsafe: Outcome | None = None
        # Whether the answer for this ack is lost: the stream then breaks instead.
        self.loses: Callable[[Ack], bool] = lambda ack: False
        self.num_dials = 0
        self.clients: list[FaultyClient] = []
        self.restart()

    @property
    def stats(self) -> TableStats:
        return self.shard.stats()[0]

    def connect(self) -> FaultyClient:
        self.clients.append(FaultyClient(self))
        return self.clients[-1]

    def kill(self) -> None:
        """Every connection breaks and none is accepted; what is stored stays until `restart`."""
        self.down = True
        self.break_streams()

    def break_streams(self) -> None:
        for stream in list(self._streams):
            stream.broken = True
            stream.task.cancel()
        self._streams.clear()

    def restart(self) -> None:
        """Empty, as a process that starts."""
        clock = asyncio.get_running_loop().time
        self.shard = Shard(self._settings, LimitsSection(), clock=clock, make_dedup=self._make_dedup)
        self.down = False

    def opened(self, stream: FaultyAppendStream | FaultySampleStream) -> None:
        self._streams.add(stream)

    async def answer(self) -> None:
        """Passes when the shard can answer."""
        while self.silent:
            await asyncio.sleep(0.1)

    async def stored(self) -> list[int]:
        """Takes everything out; the sequences in order."""
        items = (await self.shard.sample("train", 10_000, 0.001)).items
        return [item.sequence for item in items]


class FaultyClient:
    def __init__(self, host: FaultyShard) -> None:
        self._host = host
        self.closed = False

    async def open_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> AppendStream:
        await self._dial()
        inner = await InProcessReplayClient(self._host.shard).open_append(life, table, declared)
        stream = FaultyAppendStream(self._host, inner)
        self._host.opened(stream)
        return stream

    async def open_sample(self, table: str) -> SampleStream:
        await self._dial()
        inner = await InProcessReplayClient(self._host.shard).open_sample(table)
        stream = FaultySampleStream(self._host, inner)
        self._host.opened(stream)
        return stream

    async def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray
    ) -> PrioritiesUpdated:
        raise NotImplementedError

    async def stats(self) -> tuple[TableStats, ...]:
        return self._host.shard.stats()

    async def close(self) -> None:
        self.closed = True

    async def _dial(self) -> None:
        self._host.num_dials += 1
        if self._host.down:
            raise UnavailableError("connection refused")
        await self._host.answer()


class _Breakable:
    """Runs each wait as a task, so that a break ends it from outside."""

    def __init__(self, host: FaultyShard) -> None:
        self._host = host
        self.broken = False
        self.task: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def _unless_broken(self, waiting: asyncio.Future[object]) -> object:
        if self.broken:
            waiting.cancel()
            raise UnavailableError("connection reset")
        self.task = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            waiting.cancel()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise UnavailableError("connection reset") from None


class FaultyAppendStream(_Breakable):
    def __init__(self, host: FaultyShard, inner: AppendStream) -> None:
        super().__init__(host)
        self._inner = inner

    async def send(self, append: Append) -> None:
        if self.broken:
            raise UnavailableError("connection reset")
        await self._inner.send(append)

    async def receive(self) -> Ack:
        ack = await self._unless_broken(asyncio.ensure_future(self._receive()))
        assert isinstance(ack, Ack)
        if self._host.loses(ack):
            self.broken = True
            await self._inner.close()
            raise UnavailableError("the reply was lost")
        return ack

    async def close(self) -> None:
        self.broken = True
        await self._inner.close()

    async def _receive(self) -> Ack:
        ack = await self._inner.receive()
        if self._host.unsafe is not None and ack.outcome in (Outcome.STORED, Outcome.DUPLICATE):
            ack = Ack(ack.sequence, self._host.unsafe)
            await asyncio.sleep(1.0)
        await self._host.answer()
        return ack


class FaultySampleStream(_Breakable):
    def __init__(self, host: FaultyShard, inner: SampleStream) -> None:
        super().__init__(host)
        self._inner = inner

    async def request(self, num_items: int, timeout_s: float = 0.0) -> None:
        if self.broken:
            raise UnavailableError("connection reset")
        await self._inner.request(num_items, timeout_s)

    async def receive(self) -> Sampled:
        sampled = await self._unless_broken(asyncio.ensure_future(self._receive()))
        assert isinstance(sampled, Sampled)
        return sampled

    async def close(self) -> None:
        self.broken = True
        await self._inner.close()

    async def _receive(self) -> Sampled:
        sampled = await self._inner.receive()
        await self._host.answer()
        return sampled
