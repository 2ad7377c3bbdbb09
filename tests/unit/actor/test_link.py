"""One group's connection: breaks, back-off, and the way home to its own replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from services.actor.assignment import Seat
from services.actor.link import InferenceLink
from services.actor.waiting import WaitLog
from shoal.clients.inference import ActHello, ActStream
from shoal.errors import SpecMismatchError, UnavailableError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Life
from shoal.rpc.addresses import Address
from tests.unit.actor.twin import Replicas

SPEC = EnvSpec("x", (ArraySpec("observation", "float32", (1,)),), DiscreteAction(2))
HELLO = ActHello(Life("actor-0", "r"), SPEC, 1)
OBSERVATION = {"observation": np.zeros((1, 1), np.float32)}
FIRST = np.ones(1, np.bool_)


@dataclass
class FakeTime:
    """Sleeping moves the clock; nobody waits."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()
        await asyncio.sleep(0)


def make_link(replicas: Replicas, time: FakeTime, group: int = 0) -> InferenceLink:
    return InferenceLink(
        Seat("actor-0", group, 2),
        HELLO,
        lambda: replicas.addresses,
        replicas.dial,
        max_backoff_s=2.0,
        retry_home_s=5.0,
        waits=WaitLog(),
        clock=time.clock,
        sleep=time.sleep,
    )


async def server_of(stream: ActStream) -> str:
    await stream.act(OBSERVATION, FIRST)
    return stream.welcome.server_id


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def run(test: Callable[[Replicas, FakeTime], Awaitable[None]], *names: str) -> None:
    async def body() -> None:
        await test(Replicas(*names), FakeTime())

    asyncio.run(body())


def test_groups_start_at_their_own_replicas() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        for group, name in enumerate(["a", "b"]):
            link = make_link(replicas, time, group)
            assert await server_of(await link.connect()) == name
            assert not link.move_ready()
            await link.close()
            assert not replicas.backends[name].sessions

    run(test, "a", "b")


def test_a_break_goes_to_the_next_replica_and_back_home_once_that_answers() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        link = make_link(replicas, time)
        stream = await link.connect()
        time.now += 60
        replicas.kill("a")
        with pytest.raises(UnavailableError):
            await stream.act(OBSERVATION, FIRST)
        stream = await link.connect()
        assert await server_of(stream) == "b"
        assert time.slept == [], "a replica that worked for long is left without a pause"
        assert not link.move_ready()
        await until(lambda: link.move_ready() or 5.0 in time.slept)
        assert time.slept == [5.0], "home is tried now and then while it is down"
        assert await server_of(stream) == "b"
        replicas.down.clear()
        await until(link.move_ready)
        assert len(replicas.backends["b"].sessions) == 1, "the old stream serves until the group moves"
        assert await server_of(await link.connect()) == "a"
        assert not replicas.backends["b"].sessions
        assert not link.move_ready()
        await link.close()

    run(test, "a", "b")


def test_a_lone_replica_is_dialled_for_ever_with_bounded_back_off() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        replicas.down.add("a")
        link = make_link(replicas, time)

        def revive() -> None:
            if len(time.slept) == 50:
                replicas.down.clear()

        time.on_sleep = revive
        assert await server_of(await link.connect()) == "a"
        assert len(time.slept) == 50
        assert time.slept[0] < 0.1
        assert max(time.slept) <= 2.0
        assert min(time.slept[10:]) >= 1.0
        await link.close()

    run(test, "a")


def test_streams_that_break_at_once_are_no_busy_loop() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        link = make_link(replicas, time)
        for count in range(5):
            await link.connect()
            assert len(time.slept) == count
        await link.close()

    run(test, "a")


def test_new_and_vanished_replicas_move_the_group_to_its_new_place() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        everyone = replicas.addresses
        replicas.addresses = (Address("b"),)
        link = make_link(replicas, time)
        assert await server_of(await link.connect()) == "b"
        assert not link.move_ready()
        replicas.addresses = everyone
        await until(link.move_ready)
        assert await server_of(await link.connect()) == "a"
        replicas.addresses = (Address("b"),)
        await until(link.move_ready)
        assert await server_of(await link.connect()) == "b"
        await link.close()
        assert not any(backend.sessions for backend in replicas.backends.values())

    run(test, "a", "b")


def test_names_that_do_not_resolve_yet_are_waited_for() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        addresses, replicas.addresses = replicas.addresses, ()
        link = make_link(replicas, time)

        def resolve() -> None:
            if len(time.slept) == 3:
                replicas.addresses = addresses

        time.on_sleep = resolve
        assert await server_of(await link.connect()) == "a"
        await link.close()

    run(test, "a")


def test_a_refusal_is_no_reason_to_retry() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        replicas.backends["a"].refusal = SpecMismatchError("another spec")
        link = make_link(replicas, time)
        with pytest.raises(SpecMismatchError):
            await link.connect()
        assert replicas.dials == {"a": 1}
        await link.close()

    run(test, "a")


def test_a_move_under_way_ends_with_the_link_and_with_a_break() -> None:
    async def test(replicas: Replicas, time: FakeTime) -> None:
        replicas.down.add("a")
        link = make_link(replicas, time)
        assert await server_of(await link.connect()) == "b"
        replicas.down.clear()
        await until(link.move_ready)
        # The prepared stream is taken when the current one breaks before the group moved by itself.
        replicas.kill("b")
        assert await server_of(await link.connect()) == "a"
        replicas.down.clear()
        replicas.kill("a")
        assert await server_of(await link.connect()) == "b"
        replicas.down.clear()
        await until(link.move_ready)
        await link.close()
        assert not any(backend.sessions for backend in replicas.backends.values())

    run(test, "a", "b")
