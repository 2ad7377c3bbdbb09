"""The seam between the learner, which publishes weights, and inference, which follows them.

`shoal.clients.weights_grpc` reaches a learner; `InProcessWeightsClient` follows a `WeightsBackend`
(the learner's publisher) directly. Both pass the same conformance tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from shoal.records import EnvSpec, WeightsSnapshot


class WeightsClient(Protocol):
    """One learner."""

    def subscribe(
        self, subscriber_id: str, spec: EnvSpec, current_version: int
    ) -> AsyncIterator[WeightsSnapshot]:
        """Whole, checked snapshots with rising versions.

        Raises UnavailableError on a break (subscribe again) or SpecMismatchError if refused.
        """
        ...

    async def close(self) -> None: ...


class WeightsBackend(Protocol):
    """What the learner's publisher offers to its servicer and to the in-process client."""

    def accept(self, spec: EnvSpec, current_version: int) -> None:
        """Takes the spec as the run's or compares it. Raises SpecMismatchError."""
        ...

    async def newer_than(self, version: int) -> WeightsSnapshot:
        """Waits for a version above `version`. Raises UnavailableError when the learner drains."""
        ...
