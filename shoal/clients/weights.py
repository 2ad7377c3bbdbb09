"""The seam between the learner, which publishes weights, and inference, which follows them.

`shoal.clients.weights_grpc` reaches a learner; `InProcessWeightsClient` follows a `WeightsBackend`
(the learner's publisher) directly. Both pass the same conformance tests.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Protocol

from shoal.config.network import PolicySection
from shoal.records import DEFAULT_POLICY, EnvSpec, WeightsSnapshot


def policy_text(policy: PolicySection) -> str:
    """The section in the one form that both ends compare: also equal shapes can be different networks."""
    return json.dumps(policy.model_dump(mode="json"), sort_keys=True)


class WeightsClient(Protocol):
    """One learner."""

    def subscribe(
        self,
        subscriber_id: str,
        spec: EnvSpec,
        policy: str,
        current_version: int,
        policy_name: str = DEFAULT_POLICY,
    ) -> AsyncIterator[WeightsSnapshot]:
        """Whole, checked snapshots with rising versions. `policy` is the subscriber's `policy_text`.

        `policy_name`: which of the run's policies to follow.

        Raises UnavailableError on a break (subscribe again), or a UserError if refused: SpecMismatchError
        for another spec.
        """
        ...

    async def close(self) -> None: ...


class WeightsBackend(Protocol):
    """What the learner's publisher offers to its servicer and to the in-process client."""

    def accept(self, spec: EnvSpec, policy: str, current_version: int) -> None:
        """Compares the `policy_text`; takes the spec as the run's or compares it.

        Raises FailedPreconditionError for another policy, SpecMismatchError for another spec.
        """
        ...

    async def newer_than(self, version: int) -> WeightsSnapshot:
        """Waits for a version above `version`. Raises UnavailableError when the learner drains."""
        ...
