"""Following a learner that comes, goes, restarts and errs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from services.inference.engine import Engine
from services.inference.metrics import InferenceMetrics
from services.inference.subscription import Subscription
from shoal.clients.weights import WeightsClient, policy_text
from shoal.clients.weights_local import InProcessWeightsClient
from shoal.config.network import PolicySection
from shoal.errors import FailedPreconditionError, SpecMismatchError, UnavailableError, UserError
from shoal.records import WeightsSnapshot
from shoal.rpc.backoff import Backoff
from tests.unit.inference.tracer import (
    OTHER_SPEC,
    POLICY,
    WeightsSource,
    assert_consistent,
    hello,
    running_engine,
    snapshot,
    step,
    until,
)


@dataclass
class World:
    """A subscription to a learner that the test plays; pauses between dials take no time."""

    engine: Engine
    learner: WeightsSource
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    delays_s: list[float] = field(default_factory=list)
    num_failing_dials: int = 0

    async def dial(self) -> WeightsClient:
        if self.num_failing_dials:
            self.num_failing_dials -= 1
            raise UnavailableError("the name does not resolve (yet)")
        return InProcessWeightsClient(self.learner)

    async def sleep(self, delay_s: float) -> None:
        self.delays_s.append(delay_s)
        await asyncio.sleep(0)

    def subscription(self) -> Subscription:
        metrics = InferenceMetrics(self.registry)
        backoff = Backoff(initial_s=0.1, max_s=1.0, jitter=0.0)
        policy = policy_text(POLICY)
        return Subscription(self.dial, "replica-0", policy, self.engine, metrics, backoff, self.sleep)

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"shoal_inference_{name}_total") or 0.0


@asynccontextmanager
async def following(world: World) -> AsyncIterator[asyncio.Task[None]]:
    task: asyncio.Task[None] = asyncio.ensure_future(world.subscription().run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_it_subscribes_once_an_actor_told_the_spec_and_follows() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource())
            world.learner.publish(snapshot(0))
            async with following(world):
                for _ in range(10):
                    await asyncio.sleep(0)
                assert world.learner.accepted == []
                session, _ = await engine.connect(hello())
                assert world.learner.accepted == [-1]
                for version in (1, 2, 9):
                    world.learner.publish(snapshot(version))
                    await until(lambda expected=version: engine.policy_version == expected)
                assert_consistent(await engine.act(session, *step()))

    asyncio.run(scenario())


def test_a_learner_that_is_away_is_dialled_again_with_growing_pauses() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource(), num_failing_dials=6)
            world.learner.publish(snapshot(0))
            async with following(world):
                await engine.connect(hello())
            assert world.delays_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
            assert world.count("subscription_breaks") == 6

    asyncio.run(scenario())


def test_after_a_restart_it_says_what_it_has_and_goes_on() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource())
            world.learner.publish(snapshot(5))
            async with following(world):
                await engine.connect(hello())
                world.learner.go_away()
                await until(lambda: len(world.delays_s) > 3)
                world.learner.come_back()
                world.learner.publish(snapshot(6))
                await until(lambda: engine.policy_version == 6)
                assert world.learner.accepted == [-1, 5]
                assert world.delays_s[0] == pytest.approx(0.1), "a good version resets the pauses"

    asyncio.run(scenario())


def test_an_older_version_from_a_confused_learner_is_ignored() -> None:
    class Confused(WeightsSource):
        """Forgets what it was told: after version 5 it sends 3."""

        async def newer_than(self, version: int) -> WeightsSnapshot:
            return await super().newer_than(-1 if version == 5 else version)

    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, Confused())
            world.learner.publish(snapshot(5))
            async with following(world):
                session, _ = await engine.connect(hello())
                world.learner.publish(snapshot(3))
                for _ in range(20):
                    assert (await engine.act(session, *step())).policy_version == 5
                world.learner.publish(snapshot(6))
                await until(lambda: engine.policy_version == 6)

    asyncio.run(scenario())


def test_weights_that_do_not_load_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource())
            world.learner.publish(snapshot(0))
            async with following(world):
                session, _ = await engine.connect(hello())
                for version in (1, 2, 3):
                    world.learner.publish(WeightsSnapshot.of(version, b"these are no weights"))
                    await until(lambda expected=version: world.count("weight_errors") == expected)
                assert (await engine.act(session, *step())).policy_version == 0
                world.learner.publish(snapshot(4))
                await until(lambda: engine.policy_version == 4)

    with caplog.at_level(logging.INFO, logger="services.inference.subscription"):
        asyncio.run(scenario())
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "weights 1 do not load, 0 stay in use" in errors[0]
    assert "following the learner's weights at version 4" in caplog.messages


def test_first_weights_that_do_not_load_end_the_server() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource())
            world.learner.publish(WeightsSnapshot.of(0, b"these are no weights"))
            async with following(world) as task:
                connecting = asyncio.ensure_future(engine.connect(hello()))
                with pytest.raises(UserError, match="not a safetensors file"):
                    await task
                assert world.count("weight_errors") == 1
                connecting.cancel()

    asyncio.run(scenario())


def test_an_actor_of_another_spec_is_told_and_the_next_one_is_served() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource())
            world.learner.publish(snapshot(0))
            async with following(world):
                for _ in range(2):
                    with pytest.raises(SpecMismatchError, match=r"Tracer-v0.*Other-v0"):
                        await engine.connect(hello(spec=OTHER_SPEC))
                session, _ = await engine.connect(hello())
                assert_consistent(await engine.act(session, *step()))
                assert world.delays_s == []

    asyncio.run(scenario())


def test_a_learner_that_comes_back_with_another_spec_ends_the_server() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            world = World(engine, WeightsSource())
            world.learner.publish(snapshot(0))
            async with following(world) as task:
                await engine.connect(hello())
                gone, world.learner = world.learner, WeightsSource(OTHER_SPEC)
                gone.go_away()
                with pytest.raises(SpecMismatchError, match=r"Other-v0.*Tracer-v0"):
                    await task

    asyncio.run(scenario())


def test_a_learner_of_another_policy_ends_the_server() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            relu = PolicySection(hidden_sizes=(), activation="relu")
            world = World(engine, WeightsSource(policy=relu))
            async with following(world) as task:
                connecting = asyncio.ensure_future(engine.connect(hello()))
                with pytest.raises(FailedPreconditionError, match=r"relu.*tanh"):
                    await task
                connecting.cancel()

    asyncio.run(scenario())
