"""Publishing a policy's weights: the newest version for every subscriber, and the spec that the first brings.

Implements `WeightsBackend` on the event loop; `publish` is called by the training thread. A version that is
overtaken before its turn is left out: each subscriber gets the newest one next. One that cannot be serialised
is for `session` to end the training by: whoever waits for it would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import save

from services.learner.versions import VersionCounter
from shoal.clients.weights import policy_text
from shoal.config.network import PolicySection
from shoal.errors import FailedPreconditionError, SpecMismatchError, UnavailableError
from shoal.records import EnvSpec, WeightsSnapshot

log = logging.getLogger(__name__)

# Weights up to this size take less time to serialise (under 1 ms) than a thread takes to hand over.
INLINE_BYTES = 1 << 20


@dataclass(frozen=True)
class _Version:
    """What was published, before it is serialised."""

    number: int
    weights: dict[str, np.ndarray]
    untrained: bool

    def snapshot(self) -> WeightsSnapshot:
        return WeightsSnapshot.of(self.number, save(self.weights), self.untrained)


class WeightsPublisher:
    """Create on the event loop."""

    def __init__(self, versions: VersionCounter, policy: PolicySection) -> None:
        self._versions = versions
        self._policy = policy_text(policy)
        self._loop = asyncio.get_running_loop()
        self._spec: asyncio.Future[EnvSpec] = self._loop.create_future()
        self._pending: _Version | None = None
        self._serialising: asyncio.Task[None] | None = None
        self._newest: WeightsSnapshot | None = None
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._changed = asyncio.Event()
        self._closed = False

    async def spec(self) -> EnvSpec:
        """The policy's spec, once a subscriber has brought it."""
        return await asyncio.shield(self._spec)

    def accept(self, spec: EnvSpec, policy: str, current_version: int) -> None:
        if self._closed:
            raise UnavailableError("the learner is stopping")
        if policy != self._policy:
            raise FailedPreconditionError(
                f"the learner's policy section is {self._policy}; the subscriber's is {policy or 'missing'}: "
                "use the same one everywhere"
            )
        if self._spec.done() and self._spec.result() != spec:
            raise SpecMismatchError(
                f"the policy's environment is {self._spec.result().describe()}; this one is "
                f"{spec.describe()}. All actors of a run must use the same environment"
            )
        self._versions.raise_above(current_version)
        if not self._spec.done():
            log.info("the policy's environment is %s", spec.describe())
            self._spec.set_result(spec)

    async def newer_than(self, version: int) -> WeightsSnapshot:
        while not self._closed:
            if self._newest is not None and self._newest.version > version:
                return self._newest
            await self._changed.wait()
        raise UnavailableError("the learner is stopping")

    def publish(self, version: int, weights: dict[str, np.ndarray], untrained: bool = False) -> None:
        """From any thread. The caller gives the arrays away. See `WeightsSnapshot` for `untrained`."""
        self._loop.call_soon_threadsafe(self._offer, _Version(version, weights, untrained))

    async def failure(self) -> None:
        """Waits until a version cannot be serialised, and raises why."""
        await asyncio.shield(self._failed)

    def close(self) -> None:
        """Ends all subscriptions."""
        self._closed = True
        self._wake()

    def _offer(self, version: _Version) -> None:
        if self._closed:
            return
        if sum(array.nbytes for array in version.weights.values()) <= INLINE_BYTES:
            try:
                self._hand_out(version.snapshot())
            except Exception as error:  # whatever serialising may raise, such as MemoryError
                self._fail(version, error)
            return
        self._pending = version
        if self._serialising is None:
            self._serialising = self._loop.create_task(self._serialise())

    async def _serialise(self) -> None:
        """Large weights: off the loop, one at a time; what was overtaken meanwhile is left out."""
        try:
            while self._pending is not None:
                version, self._pending = self._pending, None
                try:
                    self._hand_out(await asyncio.to_thread(version.snapshot))
                except Exception as error:  # as in `_offer`
                    self._fail(version, error)
        finally:
            self._serialising = None

    def _fail(self, version: _Version, error: Exception) -> None:
        log.error("version %d of the weights cannot be serialised: %s", version.number, error)
        if not self._failed.done():
            self._failed.set_exception(error)
            # Maybe nobody asks any more.
            self._failed.exception()

    def _hand_out(self, snapshot: WeightsSnapshot) -> None:
        self._newest = snapshot
        self._wake()

    def _wake(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
