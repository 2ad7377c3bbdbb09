"""Inference for tests of the actor: a tiny deterministic backend, and replicas that can be broken.

`Replicas` stands for the network: `dial` reaches the replicas that are up, through the product's own
in-process client, and breaks streams the way a lost connection does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import numpy as np

from shoal.clients.inference import (
    ActHello,
    ActReply,
    ActStream,
    ActWelcome,
    InferenceClient,
    sent_states,
)
from shoal.clients.inference_local import InProcessInferenceClient
from shoal.errors import UnavailableError, UserError
from shoal.records import ArraySpec, Columns, DiscreteAction
from shoal.rpc.addresses import Address


class CountingBackend:
    """An `InferenceBackend` that answers any observation with action 0; its version counts its replies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_acts = 0
        self.sessions: dict[int, ActHello] = {}
        self.hellos: list[ActHello] = []
        self.refusal: UserError | None = None
        # Called before each reply; raises to break the stream at that point.
        self.before_act: Callable[[int], None] = lambda _: None
        # What the policy remembers: of each, an unroll's first reply tells the number of that reply.
        self.state: tuple[ArraySpec, ...] = ()
        # What each step has asked for.
        self.min_versions: list[int] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def connect(self, hello: ActHello) -> tuple[int, ActWelcome]:
        if self.refusal is not None:
            raise self.refusal
        self.hellos.append(hello)
        session = len(self.hellos)
        self.sessions[session] = hello
        assert isinstance(hello.spec.action, DiscreteAction)
        outputs = (hello.spec.action.array_spec(), ArraySpec("log_prob", "float32", ()))
        return session, ActWelcome(self.name, self.num_acts, outputs, self.state)

    async def act(
        self,
        session: int,
        observation: Columns,
        first: np.ndarray,
        starts_unroll: bool = False,
        min_version: int = 0,
    ) -> ActReply:
        self.min_versions.append(min_version)
        await self.hold.wait()
        # Give the other groups their turn, as a network would.
        await asyncio.sleep(0)
        if session not in self.sessions:
            raise UnavailableError(f"{self.name} has no session {session}")
        self.before_act(self.num_acts)
        self.num_acts += 1
        num_envs = self.sessions[session].num_envs
        assert first.shape == (num_envs,)
        zeros = {"action": np.zeros(num_envs, np.int64), "log_prob": np.zeros(num_envs, np.float32)}
        state = np.full((num_envs, 1), self.num_acts, np.float32)
        sent = {spec.name: state for spec in sent_states(self.state)} if starts_unroll else {}
        return ActReply(self.num_acts, zeros, sent)

    def disconnect(self, session: int) -> None:
        self.sessions.pop(session, None)


class Replicas:
    """Inference servers by name; names that are down refuse connections."""

    def __init__(self, *names: str) -> None:
        self.backends = {name: CountingBackend(name) for name in names}
        self.addresses = tuple(Address(name) for name in sorted(names))
        self.down: set[str] = set()
        self.dials: Counter[str] = Counter()

    def kill(self, name: str) -> None:
        self.down.add(name)
        self.backends[name].sessions.clear()

    def dial(self, address: Address) -> InferenceClient:
        self.dials[address.target] += 1
        return _Client(self, address.target)


class _Client:
    def __init__(self, replicas: Replicas, name: str) -> None:
        self._replicas = replicas
        self._name = name
        self._client = InProcessInferenceClient(replicas.backends[name])

    async def open(self, hello: ActHello) -> ActStream:
        if self._name in self._replicas.down:
            raise UnavailableError(f"{self._name} refuses connections")
        return await self._client.open(hello)

    async def close(self) -> None:
        await self._client.close()
