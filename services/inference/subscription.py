"""Follows the learner's weights for as long as the server runs.

One task on the event loop, started by `__main__`. The learner may be away, restart or move: it is dialled
again for ever. Whatever arrives, the version in use never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from services.inference.engine import Engine
from services.inference.metrics import InferenceMetrics
from shoal.clients.weights import WeightsClient
from shoal.errors import SpecMismatchError, UnavailableError, UserError
from shoal.records import EnvSpec, WeightsSnapshot
from shoal.rpc.backoff import Backoff

log = logging.getLogger(__name__)


class Subscription:
    """Subscribes with the run's spec and installs every newer version."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[WeightsClient]],
        subscriber_id: str,
        policy: str,
        engine: Engine,
        metrics: InferenceMetrics,
        backoff: Backoff,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._dial = dial
        self._subscriber_id = subscriber_id
        self._policy = policy
        self._engine = engine
        self._metrics = metrics
        self._backoff = backoff
        self._sleep = sleep
        self._last_complaint = ""

    async def run(self) -> NoReturn:
        """Never returns. Raises UserError if the learner refuses, or if its first weights do not load.

        Another spec than the learner's is the actor's mistake, and ends this only if there are weights.
        """
        while True:
            spec = await self._engine.spec()
            try:
                await self._follow(spec)
                reason = "it ended the subscription"
            except UnavailableError as error:
                reason = str(error)
            except SpecMismatchError as error:
                if self._engine.policy_version >= 0:
                    raise
                self._complain(logging.WARNING, f"an actor brought another spec than the learner's: {error}")
                self._engine.refuse_spec(str(error))
                continue
            self._metrics.subscription_breaks.inc()
            self._complain(logging.INFO, f"no weights from the learner, dialling again: {reason}")
            await self._sleep(self._backoff.next_delay())

    async def _follow(self, spec: EnvSpec) -> None:
        client = await self._dial()
        try:
            engine = self._engine
            snapshots = client.subscribe(
                self._subscriber_id, spec, self._policy, engine.policy_version, engine.name
            )
            async for snapshot in snapshots:
                self._backoff.reset()
                await self._install(snapshot)
        finally:
            with contextlib.suppress(UnavailableError):
                await client.close()

    async def _install(self, snapshot: WeightsSnapshot) -> None:
        try:
            installed = await self._engine.install(snapshot)
        except UserError as error:
            self._metrics.weight_errors.inc()
            kept = self._engine.policy_version
            if kept < 0:
                raise
            text = f"weights {snapshot.version} do not load, {kept} stay in use: {error}"
            self._complain(logging.ERROR, text, key=str(error))
            return
        if installed and self._last_complaint:
            self._last_complaint = ""
            log.info("following the learner's weights at version %d", snapshot.version)

    def _complain(self, level: int, text: str, key: str = "") -> None:
        """Log, but not the same thing over and over: versions and dials come many times a second."""
        if (key or text) != self._last_complaint:
            self._last_complaint = key or text
            log.log(level, text)
