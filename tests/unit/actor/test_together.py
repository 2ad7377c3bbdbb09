"""Groups of several policies that share environments: whose unrolls end together, and that nobody waits in a
circle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.actor.assignment import Seat
from services.actor.group import Group
from services.actor.link import InferenceLink
from services.actor.lockstep import Lockstep, Part
from services.actor.metrics import ActorMetrics
from services.actor.waiting import WaitLog
from shoal.clients.inference import ActHello, ActReply
from shoal.config.connections import LimitsSection
from shoal.envs.batch import EnvStep, Slots
from shoal.errors import UnavailableError
from shoal.records import ArraySpec, Columns, DiscreteAction, EnvSpec, Life
from shoal.rpc.addresses import Address
from shoal.wire import decode_trajectory
from tests.unit.actor.twin import CountingBackend, Replicas

SPEC = EnvSpec("Steps", (ArraySpec("observation", "float32", ()),), DiscreteAction(2))
POLICIES = ("red", "blue")
T = 5
LIMITS = LimitsSection()


class StepsEnv:
    """Shows the one slot of each policy how many steps were made."""

    def __init__(self) -> None:
        self.slots = {policy: Slots(SPEC, 1) for policy in POLICIES}
        self.waits = False
        self.num_restarts = 0
        self.num_steps = 0

    def reset(self, seed: int) -> dict[str, EnvStep]:
        return self._show()

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        self.num_steps += 1
        return self._show()

    def close(self) -> None: ...

    def _show(self) -> dict[str, EnvStep]:
        shown, nobody = np.full(1, self.num_steps, np.float32), np.zeros(1, np.bool_)
        return {
            policy: EnvStep({"observation": shown}, shown, nobody, nobody, nobody, nobody)
            for policy in POLICIES
        }


class Training(CountingBackend):
    """Inference, replay and learner of one policy. With `batch` unrolls of its newest version there is the
    next one; steps wait for theirs as long as it takes."""

    def __init__(self, policy: str, batch: int) -> None:
        super().__init__(policy)
        self.version = 1
        self.changed = asyncio.Condition()
        # By the number of the actor: the first steps of the unrolls it has handed over.
        self.begins: dict[int, list[int]] = {}
        self._batch = batch
        self._num_packed = 0

    async def act(
        self,
        session: int,
        observation: Columns,
        first: np.ndarray,
        starts_unroll: bool = False,
        min_version: int = 0,
    ) -> ActReply:
        async with self.changed:
            await self.changed.wait_for(lambda: self.version >= min_version)
        reply = await super().act(session, observation, first, starts_unroll, min_version)
        return ActReply(self.version, reply.outputs, reply.state)

    async def take(self, actor: int, payloads: Sequence[bytes]) -> None:
        (payload,) = payloads
        columns = decode_trajectory(payload, LIMITS).columns
        async with self.changed:
            self.begins.setdefault(actor, []).append(int(columns["observation"][0, 0]))
            # What a newer version has overtaken is left out.
            self._num_packed += bool(columns["policy_version"].min() == self.version)
            if self._num_packed == self._batch:
                self.version, self._num_packed = self.version + 1, 0
            self.changed.notify_all()

    async def until_version(self, version: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.version >= version)


class Queue:
    """The sink of one actor."""

    def __init__(self, training: Training, actor: int) -> None:
        self._training = training
        self._actor = actor

    async def append(
        self,
        payloads: Sequence[bytes],
        priorities: np.ndarray | None,
        *,
        stream: int | None,
        timeout_s: float | None,
    ) -> None:
        await self._training.take(self._actor, payloads)


class Run:
    """Actors with one environment each, which all policies share."""

    def __init__(self, num_actors: int, synchronous: bool = True) -> None:
        self.trainings = {policy: Training(policy, num_actors) for policy in POLICIES}
        self._synchronous = synchronous
        self._metrics = ActorMetrics(CollectorRegistry(), "train")
        self._replicas = Replicas(*POLICIES)
        self._replicas.backends.update(self.trainings)
        self.groups = [
            self._group(actor, part) for actor in range(num_actors) for part in Lockstep(StepsEnv()).parts
        ]
        self._tasks = [asyncio.create_task(group.run()) for group in self.groups]

    def _group(self, actor: int, part: Part) -> Group:
        waits = WaitLog()
        link = InferenceLink(
            Seat(f"actor-{actor}", 0, 1),
            ActHello(Life(f"actor-{actor}", "life"), part.spec, 1, policy=part.policy),
            lambda: (Address(part.policy),),
            self._replicas.dial,
            max_backoff_s=2.0,
            retry_home_s=5.0,
            waits=waits,
            sleep=lambda _: asyncio.sleep(0),
        )
        return Group(
            part,
            link,
            Queue(self.trainings[part.policy], actor),
            self._metrics,
            waits,
            seed=0,
            unroll_length=T,
            limits=LIMITS,
            synchronous=self._synchronous,
        )

    async def until_version(self, version: int) -> None:
        """Of all policies."""
        for training in self.trainings.values():
            await training.until_version(version)

    async def stop(self) -> None:
        for group in self.groups:
            group.stop()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task


def break_once(training: Training, reply: int) -> None:
    """The stream breaks instead of giving its reply of this number."""
    is_left = True

    def before_act(num_acts: int) -> None:
        nonlocal is_left
        if is_left and num_acts == reply:
            is_left = False
            raise UnavailableError("broken by the test")

    training.before_act = before_act


@pytest.mark.parametrize(
    ("synchronous", "red", "blue"),
    [
        # Steps 5 to 10 are no whole unroll of blue's: of nobody's.
        (True, [0, 10, 15], [0, 10, 15]),
        # Who waits for nobody loses no more than the break takes.
        (False, [0, 5, 10], [0, 7, 12]),
    ],
)
def test_unrolls_of_synchronous_policies_begin_together_again_after_a_break(
    synchronous: bool, red: list[int], blue: list[int]
) -> None:
    async def test() -> None:
        run = Run(1, synchronous)
        break_once(run.trainings["blue"], T + 2)
        async with asyncio.timeout(20):
            await run.until_version(4)
            await run.stop()
        begins = [run.trainings[policy].begins[0][:3] for policy in POLICIES]
        assert begins == [red, blue]

    asyncio.run(test())


def test_a_break_between_two_unrolls_loses_nothing() -> None:
    async def test() -> None:
        run = Run(1)
        break_once(run.trainings["blue"], T)
        async with asyncio.timeout(20):
            await run.until_version(4)
            await run.stop()
        assert [run.trainings[policy].begins[0][:3] for policy in POLICIES] == [[0, 5, 10]] * 2

    asyncio.run(test())


@pytest.mark.parametrize("seed", range(8))
def test_whichever_streams_break_nobody_waits_in_a_circle(seed: int) -> None:
    """Three actors, and steps that wait for ever: a circle would end the run."""
    chance = random.Random(seed)

    def before_act(_: int) -> None:
        if is_breaking and chance.random() < 0.05:
            raise UnavailableError("broken by the test")

    async def test() -> None:
        nonlocal is_breaking
        run = Run(3)
        for training in run.trainings.values():
            training.before_act = before_act
        async with asyncio.timeout(20):
            await run.until_version(10)
            is_breaking = False
            newest = max(training.version for training in run.trainings.values())
            await run.until_version(newest + 10)
            await run.stop()
        versions = [training.version for training in run.trainings.values()]
        # Nor does a policy run ahead: it would keep the actors from acting at the same time.
        assert max(versions) - min(versions) <= 1
        print(f"seed {seed}: versions {versions}, {sum(group.num_dropped for group in run.groups)} dropped")

    is_breaking = True
    asyncio.run(test())
