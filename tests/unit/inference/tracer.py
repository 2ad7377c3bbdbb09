"""A policy whose outputs tell which weights made them, and the engines and clients to test it with.

With observations of ones the greedy action is the version that each of its three weights was filled with;
weights of different versions in one pass give numbers that fit none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import save

from services.inference.engine import Engine
from services.inference.metrics import InferenceMetrics
from shoal.clients.inference import ActHello, ActReply
from shoal.clients.weights import policy_text
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.errors import FailedPreconditionError, SpecMismatchError, UnavailableError
from shoal.records import ArraySpec, BoxAction, Columns, EnvSpec, Life, WeightsSnapshot

NUM_INPUTS = 4
SPEC = EnvSpec(
    "Tracer-v0",
    (ArraySpec("observation", "float32", (NUM_INPUTS,)),),
    BoxAction((2,), (-math.inf,) * 2, (math.inf,) * 2),
)
OTHER_SPEC = EnvSpec("Other-v0", SPEC.observation, SPEC.action)
POLICY = PolicySection(hidden_sizes=())


def tensors(version: int) -> dict[str, torch.Tensor]:
    """Weights, bias and deviation all tell the version: the mean of ones is 4v + (v - 4v) = v."""
    return {
        "policy_head.weight": torch.full((2, NUM_INPUTS), float(version)),
        "policy_head.bias": torch.full((2,), float(version - NUM_INPUTS * version)),
        "value_head.weight": torch.zeros(1, NUM_INPUTS),
        "value_head.bias": torch.zeros(1),
        "log_std": torch.full((2,), version / 64.0),
    }


def snapshot(version: int) -> WeightsSnapshot:
    return WeightsSnapshot.of(version, save(tensors(version)))


def versions_seen(outputs: Columns) -> set[float]:
    """What the actions and the log probabilities of greedy replies say: one number, if all is well."""
    seen = {float(value) for value in outputs["action"].ravel()}
    # Log density of the mode of two normals: -2 (log_std + log sqrt(2 pi)).
    log_std = -outputs["log_prob"].astype(np.float64) / 2 - 0.5 * math.log(2 * math.pi)
    return seen | {round(float(value) * 64.0, 2) for value in log_std}


def hello(
    num_envs: int = 3,
    *,
    spec: EnvSpec = SPEC,
    greedy: bool = True,
    actor_id: str = "actor-0",
    max_wait_s: float = 0.0,
) -> ActHello:
    return ActHello(Life(actor_id, "life-1"), spec, num_envs, greedy, max_wait_s=max_wait_s)


def step(num_envs: int = 3) -> tuple[Columns, np.ndarray]:
    """Arguments of `act`."""
    return {"observation": np.ones((num_envs, NUM_INPUTS), np.float32)}, np.zeros(num_envs, np.bool_)


def assert_consistent(reply: ActReply) -> None:
    assert versions_seen(reply.outputs) == {float(reply.policy_version)}


class WeightsSource:
    """A `WeightsBackend`: the learner's side of the seam, with versions published by the test."""

    def __init__(self, spec: EnvSpec = SPEC, policy: PolicySection = POLICY) -> None:
        self._spec = spec
        self._policy = policy_text(policy)
        self._newest: WeightsSnapshot | None = None
        self._changed = asyncio.Event()
        self._away = False
        self.accepted: list[int] = []

    def publish(self, weights: WeightsSnapshot) -> None:
        self._newest = weights
        self._changed.set()

    def go_away(self) -> None:
        self._away = True
        self._changed.set()

    def come_back(self) -> None:
        self._away = False

    def accept(self, spec: EnvSpec, policy: str, current_version: int) -> None:
        if self._away:
            raise UnavailableError("the learner is away")
        if policy != self._policy:
            raise FailedPreconditionError(f"the learner has {self._policy}, not {policy}")
        if spec != self._spec:
            raise SpecMismatchError(f"the run has {self._spec.describe()}, not {spec.describe()}")
        self.accepted.append(current_version)

    async def newer_than(self, version: int) -> WeightsSnapshot:
        while True:
            if self._away:
                raise UnavailableError("the learner is away")
            if self._newest is not None and self._newest.version > version:
                return self._newest
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def running_engine(
    config: InferenceSection | None = None,
    policy: PolicySection = POLICY,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[Engine]:
    metrics = InferenceMetrics(registry or CollectorRegistry())
    engine = Engine(config or InferenceSection(id="replica-0"), policy, torch.device("cpu"), metrics)
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def install_first(engine: Engine, version: int = 0) -> None:
    """The first weights, once an actor has told the spec."""
    await engine.spec()
    await engine.install(snapshot(version))


async def connect(engine: Engine, num_envs: int = 3, *, greedy: bool = True, max_wait_s: float = 0.0) -> int:
    """A session, with weights 0 if there are none yet."""
    told = hello(num_envs, greedy=greedy, max_wait_s=max_wait_s)
    connecting = asyncio.ensure_future(engine.connect(told))
    if engine.policy_version < 0:
        await install_first(engine)
    session, _ = await connecting
    return session


async def until(condition: Callable[[], bool]) -> None:
    """Let everything else run until it is so."""
    while not condition():
        await asyncio.sleep(0.001)
