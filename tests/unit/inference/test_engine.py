"""The engine without a network: sessions, weights, hot swaps, errors and its own death."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from safetensors.torch import save

from services.inference.engine import Engine
from services.inference.runner import Runner
from shoal.clients.inference import ActReply
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SpecMismatchError,
    UnavailableError,
    UserError,
)
from shoal.records import ArraySpec, Columns, DiscreteAction, EnvSpec, WeightsSnapshot
from tests.unit.inference.tracer import (
    OTHER_SPEC,
    SPEC,
    assert_consistent,
    connect,
    hello,
    running_engine,
    snapshot,
    step,
    tensors,
)


def value(registry: CollectorRegistry, name: str) -> float:
    series = f"shoal_inference_{name}"
    found = registry.get_sample_value(series)
    if found is None:
        found = registry.get_sample_value(series, {"policy": "policy"})
    assert found is not None, name
    return found


def test_a_hello_waits_for_weights_and_is_told_what_comes() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            connecting = asyncio.ensure_future(engine.connect(hello()))
            assert await engine.spec() == SPEC
            assert not connecting.done()
            await engine.install(snapshot(4))
            _, welcome = await connecting
            assert welcome.server_id == "replica-0"
            assert welcome.policy_version == 4
            action = ArraySpec("action", "float32", (2,))
            assert welcome.outputs == (action, ArraySpec("log_prob", "float32", ()))

    asyncio.run(scenario())


def test_a_step_is_answered_by_the_weights_whose_version_it_names() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            for version in (1, 2, 30):
                await engine.install(snapshot(version))
                reply = await engine.act(session, *step())
                assert reply.policy_version == version
                assert_consistent(reply)
                assert reply.outputs["action"].shape == (3, 2)

    asyncio.run(scenario())


def test_greedy_sessions_get_the_mode_and_others_samples() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            greedy, sampling = await connect(engine), await connect(engine, greedy=False)
            both = await asyncio.gather(engine.act(greedy, *step()), engine.act(sampling, *step()))
            assert both[0].outputs["action"].tolist() == [[0.0, 0.0]] * 3
            assert np.unique(both[1].outputs["action"]).size == 6

    asyncio.run(scenario())


def test_versions_never_go_back() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            assert await engine.install(snapshot(7))
            assert not await engine.install(snapshot(7))
            assert not await engine.install(snapshot(3))
            assert (await engine.act(session, *step())).policy_version == 7

    asyncio.run(scenario())


def test_every_reply_under_hot_swaps_is_of_one_version_and_versions_rise() -> None:
    async def actor(engine: Engine, num_envs: int, stop: asyncio.Event) -> list[ActReply]:
        session = await connect(engine, num_envs)
        replies = []
        while not stop.is_set():
            replies.append(await engine.act(session, *step(num_envs)))
        engine.disconnect(session)
        return replies

    async def scenario() -> None:
        async with running_engine() as engine:
            stop = asyncio.Event()
            actors = [asyncio.ensure_future(actor(engine, num_envs, stop)) for num_envs in (1, 7, 32)]
            await engine.spec()
            for version in range(150):
                await engine.install(snapshot(version))
            stop.set()
            for replies in await asyncio.gather(*actors):
                versions = [reply.policy_version for reply in replies]
                assert versions == sorted(versions)
                assert len(set(versions)) > 10, "hardly any swap happened under load"
                for reply in replies:
                    assert_consistent(reply)

    asyncio.run(scenario())


def test_another_spec_is_refused_with_both_shown() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            await connect(engine)
            with pytest.raises(SpecMismatchError) as refused:
                await engine.connect(hello(spec=OTHER_SPEC))
            assert SPEC.describe() in str(refused.value)
            assert OTHER_SPEC.describe() in str(refused.value)

    asyncio.run(scenario())


def test_before_any_weights_another_spec_is_told_to_come_again() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            connecting = asyncio.ensure_future(engine.connect(hello()))
            await engine.spec()
            with pytest.raises(UnavailableError, match="the spec of the run is not settled yet: retry"):
                await engine.connect(hello(spec=OTHER_SPEC))
            await engine.install(snapshot(0))
            await connecting
            with pytest.raises(SpecMismatchError):
                await engine.connect(hello(spec=OTHER_SPEC))

    asyncio.run(scenario())


def test_a_spec_that_the_learner_refuses_is_forgotten_and_all_who_brought_it_are_told() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            strangers = [asyncio.ensure_future(engine.connect(hello(spec=OTHER_SPEC))) for _ in range(2)]
            assert await engine.spec() == OTHER_SPEC
            await asyncio.sleep(0)
            engine.refuse_spec("the run has another one")
            for stranger in strangers:
                with pytest.raises(SpecMismatchError, match="the run has another one"):
                    await stranger
            session = await connect(engine)
            assert await engine.spec() == SPEC
            assert_consistent(await engine.act(session, *step()))

    asyncio.run(scenario())


def test_a_spec_that_no_policy_can_handle_is_refused_and_not_taken() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            unusable = EnvSpec("Huge-v0", SPEC.observation, DiscreteAction(1 << 40))
            with pytest.raises(UserError, match="1099511627776 actions"):
                await engine.connect(hello(spec=unusable))
            await connect(engine)

    asyncio.run(scenario())


@pytest.mark.parametrize("num_envs", [0, 17])
def test_a_group_that_no_batch_holds_is_refused(num_envs: int) -> None:
    async def scenario() -> None:
        async with running_engine(InferenceSection(max_batch=16)) as engine:
            with pytest.raises(ResourceExhaustedError, match=r"1 to 16: raise inference\.max_batch"):
                await engine.connect(hello(num_envs))

    asyncio.run(scenario())


ONES = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("observation", "first"),
    [
        ({}, np.zeros(3, bool)),
        ({"observation": ONES[:2]}, np.zeros(3, bool)),
        ({"observation": ONES[:, :3]}, np.zeros(3, bool)),
        ({"observation": ONES.ravel()}, np.zeros(3, bool)),
        ({"observation": ONES.astype(np.float64)}, np.zeros(3, bool)),
        ({"observation": ONES.astype(">f4")}, np.zeros(3, bool)),
        ({"other": ONES}, np.zeros(3, bool)),
        ({"observation": ONES, "other": ONES}, np.zeros(3, bool)),
        ({"observation": ONES}, np.zeros(2, bool)),
        ({"observation": ONES}, np.zeros(3, np.uint8)),
        ({"observation": ONES}, np.zeros((3, 1), bool)),
    ],
)
def test_arrays_that_do_not_fit_are_refused_and_the_engine_lives(
    observation: Columns, first: np.ndarray
) -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        async with running_engine(registry=registry) as engine:
            session = await connect(engine)
            with pytest.raises(
                InvalidArgumentError,
                match=r"this stream takes observation float32\[3, 4\] and first bool\[3\]",
            ):
                await engine.act(session, observation, first)
            assert value(registry, "refused_total") == 1
            assert_consistent(await engine.act(session, *step()))

    asyncio.run(scenario())


def test_not_finite_observations_do_not_hurt_others() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            broken, fine = await connect(engine, greedy=False), await connect(engine)
            nan = {"observation": np.full((3, 4), np.nan, np.float32)}
            replies = await asyncio.gather(
                engine.act(broken, nan, np.zeros(3, bool)), engine.act(fine, *step())
            )
            assert_consistent(replies[1])

    asyncio.run(scenario())


def test_one_step_in_flight() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            both = await asyncio.gather(
                engine.act(session, *step()), engine.act(session, *step()), return_exceptions=True
            )
            assert isinstance(both[0], ActReply)
            assert isinstance(both[1], FailedPreconditionError)

    asyncio.run(scenario())


def test_a_cancelled_step_is_skipped_and_its_session_goes_on() -> None:
    # Without max_wait_ms passing, nothing runs before 6 rows wait: the cancelled step stays queued.
    config = InferenceSection(min_batch=6, max_wait_ms=1000)

    async def scenario() -> None:
        registry = CollectorRegistry()
        async with running_engine(config, registry=registry) as engine:
            first, second, _ = [await connect(engine) for _ in range(3)]
            step_1 = asyncio.ensure_future(engine.act(first, *step()))
            await asyncio.sleep(0)
            step_1.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step_1
            replies = await asyncio.gather(engine.act(first, *step()), engine.act(second, *step()))
            for reply in replies:
                assert_consistent(reply)
            assert value(registry, "requests_total") == 2

    asyncio.run(scenario())


def test_who_is_left_does_not_wait_for_vanished_actors() -> None:
    config = InferenceSection(min_batch=1000, max_wait_ms=1000)

    async def scenario() -> None:
        async with running_engine(config) as engine:
            stays, vanishes = await connect(engine, 3), await connect(engine, 997)
            acting = asyncio.ensure_future(engine.act(stays, *step()))
            await asyncio.sleep(0)
            assert not acting.done()
            engine.disconnect(vanishes)
            assert_consistent(await acting)

    asyncio.run(scenario())


def test_a_disconnect_ends_the_step_that_waits() -> None:
    config = InferenceSection(min_batch=6, max_wait_ms=1000)

    async def scenario() -> None:
        async with running_engine(config) as engine:
            session, _ = await connect(engine), await connect(engine)
            acting = asyncio.ensure_future(engine.act(session, *step()))
            await asyncio.sleep(0)
            engine.disconnect(session)
            engine.disconnect(session)
            with pytest.raises(UnavailableError):
                await acting
            with pytest.raises(UnavailableError):
                await engine.act(session, *step())

    asyncio.run(scenario())


def test_weights_that_do_not_fit_leave_the_old_ones_in_use() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            broken = {name: tensor for name, tensor in tensors(1).items() if name != "log_std"}
            with pytest.raises(UserError, match="log_std is missing"):
                await engine.install(WeightsSnapshot.of(1, save(broken)))
            assert engine.policy_version == 0
            assert (await engine.act(session, *step())).policy_version == 0

    asyncio.run(scenario())


def test_weights_before_any_spec_are_a_mistake() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            with pytest.raises(FailedPreconditionError):
                await engine.install(snapshot(0))

    asyncio.run(scenario())


def test_a_crash_of_the_model_thread_is_heard_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> NoReturn:
        raise MemoryError("no memory for this batch")

    monkeypatch.setattr(Runner, "run", crash)

    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            with pytest.raises(UnavailableError, match="crashed"):
                await engine.act(session, *step())
            with pytest.raises(MemoryError):
                await engine.crashed()
            with pytest.raises(UnavailableError):
                await engine.act(session, *step())
            with pytest.raises(UnavailableError):
                await engine.connect(hello())

    asyncio.run(scenario())


def test_a_drain_refuses_new_sessions_and_lets_open_ones_finish() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            session = await connect(engine)
            engine.drain()
            with pytest.raises(UnavailableError, match="another replica"):
                await engine.connect(hello())
            assert_consistent(await engine.act(session, *step()))

    asyncio.run(scenario())


def test_a_drain_ends_the_wait_for_weights() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            connecting = asyncio.ensure_future(engine.connect(hello()))
            await engine.spec()
            engine.drain()
            with pytest.raises(UnavailableError):
                await connecting

    asyncio.run(scenario())


def test_close_tells_those_who_wait() -> None:
    config = InferenceSection(min_batch=6, max_wait_ms=1000)

    async def scenario() -> None:
        async with running_engine(config) as engine:
            session, _ = await connect(engine), await connect(engine)
            acting = asyncio.ensure_future(engine.act(session, *step()))
            await asyncio.sleep(0)
            await engine.close()
            with pytest.raises(UnavailableError, match="shutting down"):
                await acting

    asyncio.run(scenario())


def test_the_metrics_add_up() -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        async with running_engine(policy=PolicySection(hidden_sizes=()), registry=registry) as engine:
            assert value(registry, "policy_version") == -1
            sessions = [await connect(engine, num_envs) for num_envs in (3, 5)]
            assert value(registry, "sessions") == 2
            assert value(registry, "env_slots") == 8
            for _ in range(10):
                await asyncio.gather(
                    *(engine.act(s, *step(n)) for s, n in zip(sessions, (3, 5), strict=True))
                )
            assert value(registry, "requests_total") == 20
            assert value(registry, "rows_total") == 80
            assert value(registry, "batch_rows_sum") == 80
            assert value(registry, "batches_total") == value(registry, "batch_rows_count") <= 20
            assert value(registry, "request_latency_seconds_count") == 20
            assert value(registry, "policy_version") == 0
            assert value(registry, "weight_swaps_total") == 1
            for session in sessions:
                engine.disconnect(session)
            assert value(registry, "sessions") == value(registry, "env_slots") == 0

    asyncio.run(scenario())
