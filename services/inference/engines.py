"""All policies of a run behind one server: each stream belongs to the engine of the policy that it names.

Implements `InferenceBackend` for the servicer. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import numpy as np

from services.inference.engine import Engine
from shoal.clients.inference import ActHello, ActReply, ActWelcome
from shoal.errors import STREAM_ENDED, FailedPreconditionError, UnavailableError
from shoal.records import Columns


class Engines:
    """Engines by the name of their policy. They share their seats."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        self._engines = {engine.name: engine for engine in engines}
        self._of_session: dict[int, Engine] = {}

    def start(self) -> None:
        for engine in self._engines.values():
            engine.start()

    async def crashed(self) -> None:
        """Never returns; raises whatever ended a model thread."""
        await asyncio.gather(*(engine.crashed() for engine in self._engines.values()))

    def drain(self) -> None:
        for engine in self._engines.values():
            engine.drain()

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))

    async def connect(self, hello: ActHello) -> tuple[int, ActWelcome]:
        engine = self._engines.get(hello.policy)
        if engine is None:
            raise FailedPreconditionError(
                f"{hello.life.actor_id} acts for the policy {hello.policy!r}, but the run has "
                f"{', '.join(self._engines)}: use the same env.policies everywhere"
            )
        session, welcome = await engine.connect(hello)
        self._of_session[session] = engine
        return session, welcome

    def act(
        self,
        session: int,
        observation: Columns,
        first: np.ndarray,
        starts_unroll: bool = False,
        min_version: int = 0,
    ) -> Coroutine[Any, Any, ActReply]:
        engine = self._of_session.get(session)
        if engine is None:
            raise UnavailableError(STREAM_ENDED)
        return engine.act(session, observation, first, starts_unroll, min_version)

    def disconnect(self, session: int) -> None:
        engine = self._of_session.pop(session, None)
        if engine is not None:
            engine.disconnect(session)
