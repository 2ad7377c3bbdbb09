"""Steps that must wait for newer weights: what ends the wait, and who does not wait with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.inference.engine import Engine
from shoal.errors import InvalidArgumentError, UnavailableError
from tests.unit.inference.tracer import assert_consistent, connect, running_engine, snapshot, step
from tests.unit.replay.virtual_time import settle


def test_a_step_waits_for_its_version_and_others_do_not() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            waiting, other = await connect(engine), await connect(engine)
            asked = asyncio.ensure_future(engine.act(waiting, *step(), min_version=3))
            for version in (0, 1, 2):
                await engine.install(snapshot(version))
                assert (await engine.act(other, *step())).policy_version == version
                assert not asked.done()
            await engine.install(snapshot(5))
            reply = await asked
            assert reply.policy_version == 5
            assert_consistent(reply)
            # What is there already is not waited for.
            assert (await engine.act(waiting, *step(), min_version=5)).policy_version == 5

    asyncio.run(scenario())


def test_each_of_several_waits_for_its_own_version() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            sessions = [await connect(engine) for _ in range(3)]
            asked = [
                asyncio.ensure_future(engine.act(session, *step(), min_version=version))
                for version, session in enumerate(sessions, start=1)
            ]
            await settle()
            for version, act in enumerate(asked, start=1):
                await engine.install(snapshot(version))
                assert (await act).policy_version == version
                assert [other.done() for other in asked] == [True] * version + [False] * (3 - version)

    asyncio.run(scenario())


def test_a_second_step_is_refused_while_one_is_held() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            asked = asyncio.ensure_future(engine.act(session, *step(), min_version=1))
            await settle()
            with pytest.raises(Exception, match="one is in flight"):
                await engine.act(session, *step())
            await engine.install(snapshot(1))
            assert (await asked).policy_version == 1

    asyncio.run(scenario())


def test_after_the_longest_wait_the_newest_weights_will_do() -> None:
    async def scenario() -> None:
        async with running_engine() as engine, asyncio.timeout(20):
            session = await connect(engine, max_wait_s=0.02)
            assert (await engine.act(session, *step(), min_version=7)).policy_version == 0
            await engine.install(snapshot(1))
            assert (await engine.act(session, *step(), min_version=7)).policy_version == 1

    asyncio.run(scenario())


def test_the_wait_of_each_step_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would have ended the wait of a step does not end that of the next."""
    patience_s, timers = 60.0, list[asyncio.TimerHandle]()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def remember(delay: float, *call: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, *call)
            if delay == patience_s:
                timers.append(timer)
            return timer

        monkeypatch.setattr(loop, "call_later", remember)
        async with running_engine() as engine:
            session = await connect(engine, max_wait_s=patience_s)
            for version in (1, 2):
                asked = asyncio.ensure_future(engine.act(session, *step(), min_version=version))
                await settle()
                assert [timer.cancelled() for timer in timers] == [True] * (version - 1) + [False]
                assert not asked.done()
                await engine.install(snapshot(version))
                assert (await asked).policy_version == version
        assert all(timer.cancelled() for timer in timers)

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", [-1.0, float("inf"), float("nan")])
def test_a_wait_that_is_no_time_is_refused(bad: float) -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            with pytest.raises(InvalidArgumentError, match="max_wait_s"):
                await connect(engine, max_wait_s=bad)

    asyncio.run(scenario())


def test_who_cancels_is_not_answered_later() -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        async with running_engine(registry=registry) as engine:
            session, other = await connect(engine, max_wait_s=60.0), await connect(engine)
            asked = asyncio.ensure_future(engine.act(session, *step(), min_version=1))
            await settle()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await engine.install(snapshot(1))
            await engine.act(other, *step())
            assert registry.get_sample_value("shoal_inference_requests_total") == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [lambda engine, _: engine.drain(), Engine.disconnect])
def test_a_drain_or_the_end_of_the_stream_ends_the_wait(end: Callable[[Engine, int], None]) -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            asked = asyncio.ensure_future(engine.act(session, *step(), min_version=1))
            await settle()
            assert not asked.done()
            end(engine, session)
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(asked, 20)

    asyncio.run(scenario())


def test_a_draining_engine_holds_nothing_and_answers_what_it_can() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            engine.drain()
            with pytest.raises(UnavailableError, match="dial another replica"):
                await engine.act(session, *step(), min_version=1)
            assert (await engine.act(session, *step())).policy_version == 0

    asyncio.run(scenario())
