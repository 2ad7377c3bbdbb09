"""Replay without a network: a `ReplayShardClient` over the server's own shard, in one process.

For tests and for programs that keep the replay in their own process. Event loop only. As over the network,
an open stream works through what was sent whether or not somebody receives: one task per stream does that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from shoal.clients.replay_shard import (
    Ack,
    Append,
    AppendStream,
    PrioritiesUpdated,
    ReplayBackend,
    Sampled,
    SampleStream,
    TableStats,
)
from shoal.errors import ShoalError, UnavailableError, fresh
from shoal.records import ArraySpec, Life

log = logging.getLogger(__name__)

# Requests of one stream that wait for their answer before the sender does.
MAX_PENDING = 64

Answer = TypeVar("Answer")
Work = Callable[[float], Awaitable[Answer]]


class InProcessReplayClient:
    """Calls a backend directly."""

    def __init__(self, backend: ReplayBackend) -> None:
        self._backend = backend
        self._streams: set[_InProcessAppendStream | _InProcessSampleStream] = set()

    async def open_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> AppendStream:
        self._backend.check_append(life, table, declared)
        stream = _InProcessAppendStream(self._backend, life, table, declared)
        self._remember(stream)
        return stream

    async def open_sample(self, table: str) -> SampleStream:
        stream = _InProcessSampleStream(self._backend, table)
        self._remember(stream)
        return stream

    async def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray
    ) -> PrioritiesUpdated:
        return self._backend.update_priorities(table, keys, priorities)

    async def stats(self) -> tuple[TableStats, ...]:
        return self._backend.stats()

    async def close(self) -> None:
        """Closes its streams too, as closing a channel does."""
        for stream in self._streams:
            await stream.close()
        self._streams.clear()

    def _remember(self, stream: _InProcessAppendStream | _InProcessSampleStream) -> None:
        self._streams = {known for known in self._streams if not known.ended}
        self._streams.add(stream)


class _Pipe(Generic[Answer]):
    """Works through requests in order and keeps the answers until somebody fetches them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: asyncio.Queue[tuple[float, Work[Answer]]] = asyncio.Queue(MAX_PENDING)
        # None is the end.
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._error: ShoalError | None = None
        self._task = self._loop.create_task(self._run())

    async def receive(self) -> Answer:
        answer = await self._answers.get()
        if answer is None:
            # For whoever asks next.
            self._answers.put_nowait(None)
            raise self._ending()
        return answer

    async def close(self) -> None:
        self._task.cancel()
        while not self._answers.empty():
            self._answers.get_nowait()
        self._end(UnavailableError("the stream was closed here: open a new one"))

    @property
    def ended(self) -> bool:
        return self._error is not None

    async def _put(self, work: Work[Answer]) -> None:
        if self._error is not None:
            raise self._ending()
        await self._requests.put((self._loop.time(), work))

    async def _run(self) -> None:
        try:
            while True:
                sent, work = await self._requests.get()
                self._answers.put_nowait(await work(self._loop.time() - sent))
        except ShoalError as error:
            self._end(error)
        except Exception:
            log.exception("the replay backend failed unexpectedly")
            self._end(UnavailableError("internal error, see the log"))

    def _end(self, error: ShoalError) -> None:
        self._error = self._error or error
        self._answers.put_nowait(None)
        # A sender that waits for a place gets one, and learns of the end when it receives.
        while not self._requests.empty():
            self._requests.get_nowait()

    def _ending(self) -> BaseException:
        assert self._error is not None
        return fresh(self._error)


class _InProcessAppendStream(_Pipe[Ack]):
    def __init__(self, backend: ReplayBackend, life: Life, table: str, declared: Sequence[ArraySpec]) -> None:
        super().__init__()
        self._append = partial(backend.append, life, table, declared=declared)

    async def send(self, append: Append) -> None:
        await self._put(partial(self._append, append))


class _InProcessSampleStream(_Pipe[Sampled]):
    def __init__(self, backend: ReplayBackend, table: str) -> None:
        super().__init__()
        self._sample = partial(backend.open_sample().sample, table)

    async def request(self, num_items: int, timeout_s: float = 0.0) -> None:
        await self._put(partial(self._sample, num_items, timeout_s))
