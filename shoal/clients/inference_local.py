"""Inference without a network: an `InferenceClient` over the server's own engine, in one process.

For tests and for programs that act in the process that holds the policy. Event loop only.
"""

from __future__ import annotations

import weakref

import numpy as np

from shoal.clients.inference import ActHello, ActReply, ActStream, ActWelcome, InferenceBackend
from shoal.errors import STREAM_ENDED, UnavailableError
from shoal.records import Columns


class InProcessInferenceClient:
    """Calls a backend directly."""

    def __init__(self, backend: InferenceBackend) -> None:
        self._backend = backend
        self._streams: weakref.WeakSet[_InProcessStream] = weakref.WeakSet()

    async def open(self, hello: ActHello) -> ActStream:
        session, welcome = await self._backend.connect(hello)
        stream = _InProcessStream(self._backend, session, welcome)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        """Closes its streams too, as closing a channel does."""
        for stream in list(self._streams):
            await stream.close()


class _InProcessStream:
    def __init__(self, backend: InferenceBackend, session: int, welcome: ActWelcome) -> None:
        self._backend = backend
        self._session = session
        self._welcome = welcome
        self._ended = False

    @property
    def welcome(self) -> ActWelcome:
        return self._welcome

    async def act(
        self, observation: Columns, first: np.ndarray, starts_unroll: bool = False, min_version: int = 0
    ) -> ActReply:
        if self._ended:
            raise UnavailableError(STREAM_ENDED)
        try:
            return await self._backend.act(self._session, observation, first, starts_unroll, min_version)
        except BaseException:
            # As over the network: an error or a cancellation ends the stream.
            await self.close()
            raise

    async def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._backend.disconnect(self._session)
