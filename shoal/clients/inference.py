"""The seam between an actor and the inference server.

`InferenceClient` is what the actor uses. `shoal.clients.inference_grpc` reaches a server;
`InProcessInferenceClient` calls an `InferenceBackend` (the server's own engine) directly. Both pass the
same conformance tests. Everything here runs on the process's one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shoal.records import DEFAULT_POLICY, FRAMES, ArraySpec, Columns, EnvSpec, Life


@dataclass(frozen=True)
class ActHello:
    """Who acts, in what, for how many environments."""

    life: Life
    spec: EnvSpec
    num_envs: int
    greedy: bool = False
    policy: str = DEFAULT_POLICY
    # Chance of a random action, one for each environment or none.
    epsilon: tuple[float, ...] = ()
    # Deviation of the noise on the actions of a deterministic policy, in half widths of their bounds.
    noise: float = 0.0
    # Longest wait of a step for its `min_version` (s), then the newest weights will do; 0: no limit.
    max_wait_s: float = 0.0


@dataclass(frozen=True)
class ActWelcome:
    """The server's answer once it has weights. `outputs` starts with the action.

    `state` is what the policy remembers of each environment; the names of frames start with `frames.`.
    """

    server_id: str
    policy_version: int
    outputs: tuple[ArraySpec, ...]
    state: tuple[ArraySpec, ...] = ()


@dataclass(frozen=True)
class ActReply:
    """Outputs by name, each [E, ...], and the version of the weights that made them.

    `state`, if the step starts an unroll: what the policy remembered before it, without the frames.
    """

    policy_version: int
    outputs: Columns
    state: Columns = field(default_factory=dict)


def sent_states(state: Sequence[ArraySpec]) -> tuple[ArraySpec, ...]:
    """Those that a reply holds: all but the frames, which the actor has shown itself."""
    return tuple(spec for spec in state if not spec.name.startswith(FRAMES))


class ActStream(Protocol):
    """Actions for one group of environments; one call of `act` at a time."""

    @property
    def welcome(self) -> ActWelcome: ...

    async def act(
        self, observation: Columns, first: np.ndarray, starts_unroll: bool = False, min_version: int = 0
    ) -> ActReply:
        """Waits until the server has weights of `min_version` or newer, or the `max_wait_s` of the hello.

        Raises UnavailableError when the server went away, InvalidArgumentError if the arrays do not fit.
        Any error, and a cancellation, ends the stream: open a new one. The outputs may be read-only.
        """
        ...

    async def close(self) -> None:
        """Gives the slots back. May be called again."""
        ...


class InferenceClient(Protocol):
    """One inference server."""

    async def open(self, hello: ActHello) -> ActStream:
        """Returns once the server has weights. Raises UnavailableError, or a UserError if refused."""
        ...

    async def close(self) -> None: ...


class InferenceBackend(Protocol):
    """What the inference engine offers to its servicer and to the in-process client."""

    async def connect(self, hello: ActHello) -> tuple[int, ActWelcome]:
        """Checks the spec, waits for weights, takes slots. Returns a session number."""
        ...

    async def act(
        self,
        session: int,
        observation: Columns,
        first: np.ndarray,
        starts_unroll: bool = False,
        min_version: int = 0,
    ) -> ActReply:
        """One call at a time per session. The arrays must not change until it returns.

        It waits until there are weights of `min_version` or newer, or the `max_wait_s` of the hello.
        """
        ...

    def disconnect(self, session: int) -> None:
        """Drops the session's slots and state. Never raises."""
        ...
