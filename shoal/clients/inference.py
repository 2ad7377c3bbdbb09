"""The seam between an actor and the inference server.

`InferenceClient` is what the actor uses. `shoal.clients.inference_grpc` reaches a server;
`InProcessInferenceClient` calls an `InferenceBackend` (the server's own engine) directly. Both pass the
same conformance tests. Everything here runs on the process's one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.records import ArraySpec, Columns, EnvSpec, Life


@dataclass(frozen=True)
class ActHello:
    """Who acts, in what, for how many environments."""

    life: Life
    spec: EnvSpec
    num_envs: int
    greedy: bool = False


@dataclass(frozen=True)
class ActWelcome:
    """The server's answer once it has weights. `outputs` starts with the action."""

    server_id: str
    policy_version: int
    outputs: tuple[ArraySpec, ...]


@dataclass(frozen=True)
class ActReply:
    """Outputs by name, each [E, ...], and the version of the weights that made them."""

    policy_version: int
    outputs: Columns


class ActStream(Protocol):
    """Actions for one group of environments; one call of `act` at a time."""

    @property
    def welcome(self) -> ActWelcome: ...

    async def act(self, observation: Columns, first: np.ndarray) -> ActReply:
        """Raises UnavailableError when the server went away, InvalidArgumentError if the arrays do not fit.

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

    async def act(self, session: int, observation: Columns, first: np.ndarray) -> ActReply:
        """One call at a time per session. The arrays must not change until it returns."""
        ...

    def disconnect(self, session: int) -> None:
        """Drops the session's slots and state. Never raises."""
        ...
