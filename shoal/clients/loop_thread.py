"""The event loop behind clients that are called from ordinary code, in a thread of its own.

Used by `shoal.clients.replay`. gRPC wants one event loop per process, so all such clients share one thread:
it starts with the first of them and ends with the last. Each has a `ClientLoop`, which may be used from any
thread but that one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from shoal.errors import UnavailableError, UserError

CLOSED = "the replay client is closed"

T = TypeVar("T")


class LoopThread:
    """A running event loop. For `ClientLoop` alone."""

    _lock = threading.Lock()
    _shared: LoopThread | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._num_users = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="shoal-client", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        """The loop of this process; `release` it when done."""
        with cls._lock:
            # A fork copies the object and not its thread.
            if cls._shared is None or cls._shared.pid != os.getpid():
                cls._shared = LoopThread()
            cls._shared._num_users += 1
            return cls._shared

    def release(self) -> None:
        cls = type(self)
        with cls._lock:
            self._num_users -= 1
            if self._num_users or self.pid != os.getpid():
                return
            if cls._shared is self:
                cls._shared = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Between `acquire` and `release`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_end_tasks())
        self._loop.close()


async def _end_tasks() -> None:
    """So that whoever waits for one learns that it is over."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class ClientLoop:
    """The calls of one client. Once it is closed those that are under way end and new ones are refused."""

    def __init__(self) -> None:
        self._thread = LoopThread.acquire()
        self._lock = threading.Lock()
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for its result; a caller that is interrupted cancels it.

        Raises UnavailableError if the client is closed, before or meanwhile.
        """
        if self._forked:
            coroutine.close()
            raise UserError("this client was made before the process forked: make one after the fork")
        with self._lock:
            if self._closed:
                coroutine.close()
                raise UnavailableError(CLOSED)
            future = self._thread.submit(coroutine)
            self._calls.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UnavailableError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._lock:
                self._calls.discard(future)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """End all calls, run `last`, and let go of the thread. May be called again."""
        if self._forked:
            last.close()
            return
        with self._lock:
            if self._closed:
                last.close()
                return
            self._closed = True
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        try:
            self._thread.submit(last).result()
        finally:
            self._thread.release()

    @property
    def _forked(self) -> bool:
        """The lock and the thread are of another process: nothing here can be used."""
        return self._thread.pid != os.getpid()
