"""Weights without a network: a `WeightsClient` over the learner's own publisher, in one process.

For tests and for programs that train and act in one process. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from shoal.clients.weights import WeightsBackend
from shoal.errors import UnavailableError
from shoal.records import DEFAULT_POLICY, EnvSpec, WeightsSnapshot


class InProcessWeightsClient:
    """Follows a backend directly, which is that of one policy, whatever its name."""

    def __init__(self, backend: WeightsBackend) -> None:
        self._backend = backend
        self._closed = asyncio.Event()

    async def subscribe(
        self,
        subscriber_id: str,
        spec: EnvSpec,
        policy: str,
        current_version: int,
        policy_name: str = DEFAULT_POLICY,
    ) -> AsyncIterator[WeightsSnapshot]:
        self._check_open()
        self._backend.accept(spec, policy, current_version)
        version = current_version
        while True:
            snapshot = await self._newer_than(version)
            version = snapshot.version
            yield snapshot

    async def close(self) -> None:
        """Ends its subscriptions too, as closing a channel does."""
        self._closed.set()

    async def _newer_than(self, version: int) -> WeightsSnapshot:
        newer = asyncio.ensure_future(self._backend.newer_than(version))
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({newer, closed}, return_when=asyncio.FIRST_COMPLETED)
            self._check_open()
            return await newer
        finally:
            newer.cancel()
            closed.cancel()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise UnavailableError("this client was closed")
