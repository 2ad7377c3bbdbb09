"""Reads a stream's requests ahead of their answers, within bounds.

One per open stream, made by the servicer, on the event loop. It knows no gRPC: it is given a `read` that
returns None at the end. Reading goes on while an answer is being worked out; once `max_items` or `max_bytes`
wait, it stops, and the transport's flow control then holds the sender back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """`with ReadAhead(...) as reader` runs one reading task for as long as the block lasts."""

    def __init__(
        self,
        read: Callable[[], Awaitable[T | None]],
        size: Callable[[T], int],
        max_items: int,
        max_bytes: int,
    ) -> None:
        self._read = read
        self._size = size
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, T]] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    def __enter__(self) -> ReadAhead[T]:
        self._task = self._loop.create_task(self._run())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()

    async def next(self) -> tuple[T, float] | None:
        """The oldest request and how long it has waited (s); None at the end. Raises what `fail` got."""
        while not self._waiting and not self._ended and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if not self._waiting:
            return None
        arrived, request = self._waiting.popleft()
        self._waiting_bytes -= self._size(request)
        self._taken.set()
        return request, self._loop.time() - arrived

    def fail(self, error: Exception) -> None:
        """Make `next` raise at once, whatever waits."""
        self._error = error
        self._changed.set()

    async def _run(self) -> None:
        try:
            while (request := await self._read()) is not None:
                self._waiting.append((self._loop.time(), request))
                self._waiting_bytes += self._size(request)
                self._changed.set()
                while len(self._waiting) >= self._max_items or self._waiting_bytes >= self._max_bytes:
                    self._taken.clear()
                    await self._taken.wait()
        except Exception as error:
            self.fail(error)
        self._ended = True
        self._changed.set()
