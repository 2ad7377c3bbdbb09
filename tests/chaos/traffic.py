"""Load on a shard: the real `ReplayWriter`, plain append streams and samplers, each with the log of its acks.

On the test's one event loop; the shard is a process of its own. Payloads are cheap to make and all different:
a trajectory made once, with another `stream` and `first_step` behind it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from types import TracebackType

import numpy as np

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import Ack, Append, AppendStream, Sampled
from shoal.clients.replay_writer import ReplayWriter
from shoal.config.connections import LimitsSection, RpcSection
from shoal.config.tree import ActorSection
from shoal.errors import UnavailableError
from shoal.records import FIRST, OBSERVATION, Life, Trajectory
from shoal.rpc.addresses import Address, AddressBook
from shoal.v1 import trajectory_pb2
from shoal.wire import encode_trajectory
from tests.chaos.model import AckedLog, StoredItem
from tests.chaos.run import holds
from tests.chaos.validate import TABLE
from tests.service.replay_server import OPEN, until

# A dump of a whole table is one answer.
LIMITS = LimitsSection(max_message_bytes=1 << 30)
UNROLL_LENGTH = 2
# A shard that is killed is seen to be gone; one that only gets no CPU for a while is not to be given up.
RPC = RpcSection(max_backoff_s=0.2, keepalive_s=5.0, keepalive_timeout_s=20.0)


def connect(address: Address) -> GrpcReplayClient:
    return GrpcReplayClient(address, OPEN, LIMITS, RPC)


@lru_cache(maxsize=16)
def _template(width: int) -> bytes:
    """One environment; `width` float32 that do not compress per row."""
    rows = UNROLL_LENGTH + 1
    noise = np.random.default_rng(width).random((rows, 1, width)).astype(np.float32)
    return encode_trajectory(Trajectory({OBSERVATION: noise, FIRST: np.zeros((rows, 1), np.bool_)}))


def payload(stream: int, number: int, width: int = 16) -> bytes:
    """Unroll `number` of a stream. Two messages in a row are one message with the fields of both."""
    place = trajectory_pb2.Trajectory(stream=stream, first_step=number * UNROLL_LENGTH)
    return _template(width) + place.SerializeToString()


class LoggedStream:
    """An append stream that logs; with `lose_reply`, one that breaks instead of handing out an ack."""

    def __init__(
        self, stream: AppendStream, life: Life, log: AckedLog, lose_reply: Callable[[], bool]
    ) -> None:
        self._stream = stream
        self._life = life
        self._log = log
        self._lose_reply = lose_reply
        self._is_open = True
        log.num_open += 1

    async def send(self, append: Append) -> None:
        self._log.on_send(self._life, append.sequence, append.payloads)
        await self._stream.send(append)

    async def receive(self) -> Ack:
        ack = await self._stream.receive()
        if self._lose_reply():
            self._log.num_replies_lost += 1
            await self.close()
            raise UnavailableError("the reply was lost")
        self._log.on_ack(self._life, ack)
        return ack

    async def close(self) -> None:
        self._log.num_open -= self._is_open
        self._is_open = False
        await self._stream.close()


class LoggedClient(GrpcReplayClient):
    """A client whose append streams log."""

    def __init__(
        self, address: Address, log: AckedLog, lose_reply: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(address, OPEN, LIMITS, RPC)
        self._log = log
        self._lose_reply = lose_reply

    async def open_append(self, life: Life, table: str, *declared: object, **more: object) -> AppendStream:
        stream = await super().open_append(life, table, *declared, **more)  # type: ignore[arg-type]
        return LoggedStream(stream, life, self._log, self._lose_reply)


class Writers:
    """Actors that append to one shard as fast as it acks: 1 to 3 trajectories an append.

    `pause` returns once all is acked; they live until the context ends, over all restarts of the shard.
    """

    def __init__(
        self,
        address: Address,
        log: AckedLog,
        *,
        number: int = 3,
        window: int = 16,
        width: int = 16,
        pause_s: float = 0.0,
        failover_after_s: float = 60.0,
        lose_reply: Callable[[], bool] = lambda: False,
    ) -> None:
        self.log = log
        self.writers: list[ReplayWriter] = []
        self._width = width
        self._pause_s = pause_s
        self._running = asyncio.Event()
        self._idle: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []
        actor = ActorSection(max_unacked_items=window, failover_after_s=failover_after_s)
        for lane in range(number):
            # A new life each time: a shard that is restarted has seen the others.
            life = Life(f"actor-{lane}", f"run-{random.getrandbits(64):016x}")
            self.writers.append(
                ReplayWriter(
                    AddressBook([address.target], RPC),
                    lambda address: LoggedClient(address, log, lose_reply),
                    life,
                    TABLE,
                    actor,
                    RPC,
                )
            )
            self._idle.append(asyncio.Event())

    async def __aenter__(self) -> Writers:
        for lane, writer in enumerate(self.writers):
            writer.start()
            self._tasks.append(asyncio.create_task(self._run(lane)))
        self.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self.writers:
            await writer.close()
        for failure in ended:
            if error is None and isinstance(failure, Exception):
                raise failure

    def resume(self) -> None:
        for idle in self._idle:
            idle.clear()
        self._running.set()

    async def pause(self, timeout_s: float = 60.0) -> None:
        """Nothing new; returns once everything is acked."""
        self._running.clear()
        async with asyncio.timeout(timeout_s):
            for idle in self._idle:
                await idle.wait()
            for writer in self.writers:
                assert await writer.flush(timeout_s) == 0

    @property
    def num_unacked(self) -> int:
        return sum(writer.num_unacked for writer in self.writers)

    async def _run(self, lane: int) -> None:
        number = 0
        while True:
            if not self._running.is_set():
                self._idle[lane].set()
                await self._running.wait()
            payloads = [payload(lane, number + index, self._width) for index in range(1 + number % 3)]
            number += len(payloads)
            await self.writers[lane].append(payloads)
            # Also lets others run when there is room at once.
            await asyncio.sleep(self._pause_s)


class Samplers:
    """Asks for `batch` items again and again, `prefetch` requests ahead, and counts what it gets."""

    def __init__(
        self,
        address: Address,
        *,
        batch: int = 32,
        prefetch: int = 2,
        pause_s: float = 0.0,
        keep: bool = False,
    ) -> None:
        self.num_items = 0
        self.num_empty = 0
        # Everything that was handed out, where that is once.
        self.taken: list[StoredItem] = []
        self.times_sampled: Counter[int] = Counter()
        self.keys_behind: list[int] = []
        self.longest_gap_s = 0.0
        self._address = address
        self._batch = batch
        self._prefetch = prefetch
        self._pause_s = pause_s
        self._keep = keep
        self._newest = 0
        self._last = 0.0

    async def __aenter__(self) -> Samplers:
        self._client = connect(self._address)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        ended = (await asyncio.gather(self._task, return_exceptions=True))[0]
        await self._client.close()
        if isinstance(ended, Exception):
            raise ended

    async def run_dry(self) -> None:
        """Until there is nothing more to get: a request made from now on was answered with nothing."""
        empty = self.num_empty
        # Answers come in the order of the requests, and so many of them are on their way.
        await until(lambda: holds(self.num_empty > empty + self._prefetch))

    def reset_gap(self) -> None:
        self.longest_gap_s = self._last = 0.0

    async def _run(self) -> None:
        while True:
            try:
                await self._session()
            except UnavailableError:
                await asyncio.sleep(0.02)

    async def _session(self) -> None:
        stream = await self._client.open_sample(TABLE)
        try:
            for _ in range(self._prefetch):
                await stream.request(self._batch, 0.5)
            while True:
                self._count(await stream.receive())
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)
                await stream.request(self._batch, 0.5)
        finally:
            await stream.close()

    def _count(self, sampled: Sampled) -> None:
        now = time.monotonic()
        if self._last:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
        self._last = now
        self.num_empty += not sampled.items
        self.num_items += len(sampled.items)
        keys = [item.key for item in sampled.items]
        self._newest = max([self._newest, *keys])
        if self._keep:
            self.taken += map(StoredItem.of, sampled.items)
        self.times_sampled.update(keys)
        self.keys_behind += [self._newest - key for key in keys]


@asynccontextmanager
async def client_of(address: Address) -> AsyncIterator[GrpcReplayClient]:
    """A client of a shard that has read its files."""
    client = connect(address)

    async def serves() -> bool:
        try:
            return bool(await client.stats())
        except UnavailableError:
            return False

    try:
        await until(serves)
        yield client
    finally:
        await client.close()
