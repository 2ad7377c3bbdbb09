"""One group of counting environments without sockets, for the tests of the actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry

from services.actor.assignment import Seat
from services.actor.group import Group, Sink
from services.actor.link import InferenceLink
from services.actor.lockstep import Lockstep
from services.actor.metrics import ActorMetrics
from services.actor.priorities import FirstPriorities
from services.actor.waiting import WaitLog
from shoal.clients.inference import ActHello
from shoal.config.connections import LimitsSection
from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv
from shoal.envs.make import make_batch_env
from shoal.errors import UnavailableError, UserError
from shoal.records import Life, Trajectory
from shoal.wire import decode_trajectory
from tests.unit.actor.twin import Replicas
from tests.unit.envs import counting

T, E = 5, 3
# Of the group among those of its actor.
INDEX = 2
DEFAULT_LIMITS = LimitsSection()


@dataclass
class Collected:
    """A sink that takes everything until `room` is cleared."""

    trajectories: list[Trajectory] = field(default_factory=list)
    # The number of payloads and the stream of each append.
    appends: list[tuple[int, int | None]] = field(default_factory=list)
    priorities: list[np.ndarray | None] = field(default_factory=list)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    num_waiting: int = 0

    def __post_init__(self) -> None:
        self.room.set()

    async def append(
        self,
        payloads: Sequence[bytes],
        priorities: np.ndarray | None,
        *,
        stream: int | None,
        timeout_s: float | None,
    ) -> None:
        self.num_waiting += 1
        await self.room.wait()
        self.num_waiting -= 1
        async with self.grown:
            self.appends.append((len(payloads), stream))
            self.priorities.append(priorities)
            self.trajectories.extend(decode_trajectory(payload, DEFAULT_LIMITS) for payload in payloads)
            self.grown.notify_all()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20), self.grown:
            await self.grown.wait_for(lambda: len(self.trajectories) >= count)


class Harness:
    """One group of counting environments and all that it needs."""

    def __init__(
        self,
        vectorization: str,
        replicas: Replicas,
        *,
        evaluate: bool = False,
        limits: LimitsSection = DEFAULT_LIMITS,
        unrolls: int | None = None,
        priorities: FirstPriorities | None = None,
        synchronous: bool = False,
        shares: Sequence[slice] = (),
    ) -> None:
        self.replicas = replicas
        self.sink = Collected()
        self.registry = CollectorRegistry()
        self.slept: list[float] = []
        mode = "evaluate" if evaluate else "train"
        self.env = _make_env(vectorization)
        (part,) = Lockstep(self.env).parts
        hello = ActHello(Life("actor-0", "life"), part.spec, E, greedy=evaluate)
        waits = WaitLog()
        link = InferenceLink(
            Seat("actor-0", 0, 1),
            hello,
            lambda: replicas.addresses,
            replicas.dial,
            max_backoff_s=2.0,
            retry_home_s=5.0,
            waits=waits,
            sleep=self._sleep,
        )
        sink: Sink | None = None if evaluate else self.sink
        self.metrics = ActorMetrics(self.registry, mode)
        self.group = Group(
            part,
            link,
            sink,
            self.metrics,
            waits,
            seed=70,
            unroll_length=T,
            limits=limits,
            index=INDEX,
            unrolls=unrolls,
            priorities=priorities,
            synchronous=synchronous,
            shares=shares,
        )
        self.task = asyncio.create_task(self.group.run())

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"shoal_actor_{name}", labels)
        assert value is not None, name
        return value

    async def stop(self) -> None:
        self.group.stop()
        async with asyncio.timeout(20):
            await self.task


def _make_env(vectorization: str) -> BatchEnv:
    section = {"id": f"{counting.__name__}:Counting-v0", "vectorization": vectorization}
    return make_batch_env(EnvSection.model_validate(section), E)


def breaking_at(moments: Iterable[int]) -> Callable[[Replicas], None]:
    """`prepare` of `run`: the stream breaks once at each of these numbers of replies."""
    left = set(moments)

    def break_at(num_acts: int) -> None:
        if num_acts in left:
            left.remove(num_acts)
            raise UnavailableError("broken by the test")

    def prepare(replicas: Replicas) -> None:
        replicas.backends["a"].before_act = break_at

    return prepare


def run(
    test: Callable[[Harness], Awaitable[None]],
    *names: str,
    vectorization: str = "sync",
    evaluate: bool = False,
    limits: LimitsSection = DEFAULT_LIMITS,
    unrolls: int | None = None,
    priorities: FirstPriorities | None = None,
    synchronous: bool = False,
    shares: Sequence[slice] = (),
    prepare: Callable[[Replicas], None] = lambda _: None,
) -> None:
    async def body() -> None:
        replicas = Replicas(*(names or ("a",)))
        prepare(replicas)
        harness = Harness(
            vectorization,
            replicas,
            evaluate=evaluate,
            limits=limits,
            unrolls=unrolls,
            priorities=priorities,
            synchronous=synchronous,
            shares=shares,
        )
        try:
            await test(harness)
        finally:
            harness.group.stop()
            with suppress(UserError):
                await asyncio.wait_for(harness.task, 20)
            harness.env.close()

    asyncio.run(body())
