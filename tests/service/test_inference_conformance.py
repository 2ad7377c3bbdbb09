"""What every InferenceClient must do: the gRPC client with a real server, and its in-process twin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from shoal.clients.inference import ActHello, ActReply, ActStream, InferenceClient
from shoal.clients.inference_local import InProcessInferenceClient
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    SpecMismatchError,
    UnavailableError,
    UserError,
)
from shoal.policy.network import Choice, build_policy
from shoal.records import ArraySpec, Columns, DiscreteAction, EnvSpec, Life, WeightsSnapshot
from tests.service.inference_server import Served, served, socket_directory
from tests.unit.inference.tracer import (
    OTHER_SPEC,
    POLICY,
    SPEC,
    WeightsSource,
    assert_consistent,
    hello,
    snapshot,
    step,
    until,
)

NAN = np.full((3, 4), np.nan, np.float32)


@dataclass
class World:
    """A client of one of the kinds, the server that it talks to and the learner behind that."""

    client: InferenceClient
    server: Served
    learner: WeightsSource


Scenario = Callable[[World], Coroutine[Any, Any, None]]
Run = Callable[..., None]


@pytest.fixture(params=["grpc", "in-process"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario with one kind of client; weights of version 0 are there unless `weights` is False."""

    @asynccontextmanager
    async def world(weights: bool, spec: EnvSpec, **settings: Any) -> AsyncIterator[World]:
        learner = WeightsSource(spec, settings.get("policy", POLICY))
        if weights:
            learner.publish(snapshot(0))
        with socket_directory() as directory:
            async with served(directory, learner, **settings) as server:
                client: InferenceClient
                client = (
                    server.client() if request.param == "grpc" else InProcessInferenceClient(server.engine)
                )
                yield World(client, server, learner)
                await client.close()

    def run_scenario(
        scenario: Scenario, *, weights: bool = True, spec: EnvSpec = SPEC, **settings: Any
    ) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), world(weights, spec, **settings) as built:
                await scenario(built)

        asyncio.run(main())

    return run_scenario


def test_a_stream_opens_once_there_are_weights(run: Run) -> None:
    async def scenario(world: World) -> None:
        opening = asyncio.ensure_future(world.client.open(hello()))
        assert await world.server.engine.spec() == SPEC
        assert not opening.done()
        world.learner.publish(snapshot(3))
        stream = await opening
        assert stream.welcome.server_id == "replica-0"
        assert stream.welcome.policy_version == 3
        action = ArraySpec("action", "float32", (2,))
        assert stream.welcome.outputs == (action, ArraySpec("log_prob", "float32", ()))

    run(scenario, weights=False)


def test_every_step_is_answered_as_announced(run: Run) -> None:
    async def scenario(world: World) -> None:
        stream = await world.client.open(hello(5))
        for _ in range(20):
            reply = await stream.act(*step(5))
            assert_consistent(reply)
            assert list(reply.outputs) == [spec.name for spec in stream.welcome.outputs]
            for spec in stream.welcome.outputs:
                assert reply.outputs[spec.name].shape == (5, *spec.shape)
                assert reply.outputs[spec.name].dtype == spec.dtype
        await stream.close()

    run(scenario)


def test_greedy_streams_get_the_mode_and_others_samples(run: Run) -> None:
    async def scenario(world: World) -> None:
        greedy, sampling = await world.client.open(hello()), await world.client.open(hello(greedy=False))
        assert (await greedy.act(*step())).outputs["action"].tolist() == [[0.0, 0.0]] * 3
        drawn = [(await sampling.act(*step())).outputs["action"] for _ in range(2)]
        assert np.unique(np.stack(drawn)).size == 12

    run(scenario)


def test_a_step_waits_for_the_version_that_it_asks_for(run: Run) -> None:
    async def scenario(world: World) -> None:
        waiting, other = await world.client.open(hello()), await world.client.open(hello())
        asked = asyncio.ensure_future(waiting.act(*step(), min_version=2))
        for version in (0, 1):
            world.learner.publish(snapshot(version))
            await until(lambda version=version: world.server.engine.policy_version == version)
            assert (await other.act(*step())).policy_version == version
            assert not asked.done()
        world.learner.publish(snapshot(2))
        assert (await asked).policy_version == 2
        hasty = await world.client.open(replace(hello(), max_wait_s=0.01))
        assert (await hasty.act(*step(), min_version=9)).policy_version == 2

    run(scenario)


def test_a_server_that_drains_ends_the_wait_for_a_version(run: Run) -> None:
    async def scenario(world: World) -> None:
        stream = await world.client.open(hello())
        asked = asyncio.ensure_future(stream.act(*step(), min_version=2))
        await (await world.client.open(hello())).act(*step())
        world.server.engine.drain()
        with pytest.raises(UnavailableError):
            await asked

    run(scenario)


def test_hot_swaps_under_load_never_mix_versions_and_never_go_back(run: Run) -> None:
    async def actor(stream: ActStream, num_envs: int, stop: asyncio.Event) -> list[ActReply]:
        replies = []
        while not stop.is_set():
            replies.append(await stream.act(*step(num_envs)))
        return replies

    async def scenario(world: World) -> None:
        stop = asyncio.Event()
        streams = [(await world.client.open(hello(num_envs)), num_envs) for num_envs in (1, 16, 64)]
        actors = [asyncio.ensure_future(actor(stream, num_envs, stop)) for stream, num_envs in streams]
        for version in range(1, 80):
            world.learner.publish(snapshot(version))
            await until(lambda expected=version: world.server.engine.policy_version == expected)
        stop.set()
        for replies in await asyncio.gather(*actors):
            versions = [reply.policy_version for reply in replies]
            assert versions == sorted(versions)
            assert len(set(versions)) > 10, "hardly any swap happened under load"
            for reply in replies:
                assert_consistent(reply)

    run(scenario)


def test_another_spec_is_refused_with_both_shown(run: Run) -> None:
    async def scenario(world: World) -> None:
        stream = await world.client.open(hello())
        with pytest.raises(SpecMismatchError) as refused:
            await world.client.open(hello(spec=OTHER_SPEC))
        assert SPEC.describe() in str(refused.value)
        assert OTHER_SPEC.describe() in str(refused.value)
        assert_consistent(await stream.act(*step()))

    run(scenario)


def test_the_first_actors_spec_counts_only_once_the_learner_has_confirmed_it(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(SpecMismatchError) as refused:
            await world.client.open(hello(spec=OTHER_SPEC))
        assert SPEC.describe() in str(refused.value)
        assert OTHER_SPEC.describe() in str(refused.value)
        opening = asyncio.ensure_future(world.client.open(hello()))
        assert await world.server.engine.spec() == SPEC
        with pytest.raises(UnavailableError, match="not settled yet: retry"):
            await world.client.open(hello(spec=OTHER_SPEC))
        world.learner.publish(snapshot(0))
        assert_consistent(await (await opening).act(*step()))

    run(scenario, weights=False)


def test_a_group_that_no_batch_holds_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ResourceExhaustedError, match=r"raise inference\.max_batch"):
            await world.client.open(hello(17))
        await world.client.open(hello(16))

    run(scenario, config=InferenceSection(id="replica-0", max_batch=16))


def test_a_space_that_cannot_be_handled_is_the_users_error(run: Run) -> None:
    async def scenario(world: World) -> None:
        unusable = EnvSpec("Huge-v0", SPEC.observation, DiscreteAction(1 << 40))
        with pytest.raises(UserError, match="1099511627776 actions"):
            await world.client.open(hello(spec=unusable))

    run(scenario)


@pytest.mark.parametrize(
    "arguments",
    [
        ({"observation": NAN[:2]}, np.zeros(3, bool)),
        ({"observation": NAN.astype(np.float64)}, np.zeros(3, bool)),
        ({"observation": NAN, "extra": NAN}, np.zeros(3, bool)),
        ({"observation": NAN}, np.zeros(3, np.float32)),
        ({}, np.zeros(3, bool)),
    ],
)
def test_arrays_that_do_not_fit_end_their_stream_only(
    run: Run, arguments: tuple[Columns, np.ndarray]
) -> None:
    async def scenario(world: World) -> None:
        wrong, right = await world.client.open(hello()), await world.client.open(hello())
        with pytest.raises(InvalidArgumentError):
            await wrong.act(*arguments)
        with pytest.raises(UnavailableError):
            await wrong.act(*step())
        assert_consistent(await right.act(*step()))
        assert_consistent(await (await world.client.open(hello())).act(*step()))

    run(scenario)


def test_a_closed_stream_gives_its_slots_back_and_acts_no_more(run: Run) -> None:
    async def scenario(world: World) -> None:
        streams = [await world.client.open(hello()) for _ in range(3)]
        assert world.server.value("env_slots") == 9
        for stream in streams[:2]:
            await stream.act(*step())
            await stream.close()
            await stream.close()
            with pytest.raises(UnavailableError):
                await stream.act(*step())
        await until(lambda: world.server.value("sessions") == 1)
        assert_consistent(await streams[2].act(*step()))

    run(scenario)


def test_closing_the_client_closes_its_streams(run: Run) -> None:
    async def scenario(world: World) -> None:
        stream = await world.client.open(hello())
        await world.client.close()
        with pytest.raises(UnavailableError):
            await stream.act(*step())
        await until(lambda: world.server.value("sessions") == 0)

    run(scenario)


def test_a_cancelled_step_ends_its_stream_and_frees_its_slots(run: Run) -> None:
    async def scenario(world: World) -> None:
        stream, _ = await world.client.open(hello()), await world.client.open(hello())
        acting = asyncio.ensure_future(stream.act(*step()))
        await asyncio.sleep(0.01)
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
        with pytest.raises(UnavailableError):
            await stream.act(*step())
        await until(lambda: world.server.value("sessions") == 1)

    # Nothing runs before 6 rows wait: the step is still in flight when it is cancelled.
    run(scenario, config=InferenceSection(id="replica-0", min_batch=6, max_wait_ms=1000))


def test_giving_up_the_wait_for_weights_leaves_nothing_behind(run: Run) -> None:
    async def scenario(world: World) -> None:
        opening = asyncio.ensure_future(world.client.open(hello()))
        await world.server.engine.spec()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        world.learner.publish(snapshot(1))
        stream = await world.client.open(hello())
        await until(lambda: world.server.value("sessions") == 1)
        assert_consistent(await stream.act(*step()))

    run(scenario, weights=False)


def test_a_drain_ends_the_wait_for_weights(run: Run) -> None:
    async def scenario(world: World) -> None:
        opening = asyncio.ensure_future(world.client.open(hello()))
        await world.server.engine.spec()
        world.server.engine.drain()
        await world.server.servicer.drain()
        with pytest.raises(UnavailableError):
            await opening
        with pytest.raises(UnavailableError):
            await world.client.open(hello())

    run(scenario, weights=False)


MIXED = EnvSpec(
    "Mixed-v0",
    (
        ArraySpec("observation.frame", "uint8", (84, 84, 2)),
        ArraySpec("observation.kind", "int64", (), num_categories=5),
        ArraySpec("observation.level", "float64", (3,)),
    ),
    DiscreteAction(7),
)


def test_frames_categories_and_numbers_arrive_as_they_were_sent(run: Run) -> None:
    policy_config = PolicySection(hidden_sizes=(16,))
    policy = build_policy(policy_config, MIXED)
    random = np.random.default_rng(3)
    num_envs = 4

    async def scenario(world: World) -> None:
        world.learner.publish(WeightsSnapshot.of(1, save(policy.state_dict())))
        stream = await world.client.open(ActHello(Life("a", "r"), MIXED, num_envs, greedy=True))
        for round_number in range(4):
            frames = random.integers(0, 256, (num_envs, 84, 84, 2), np.uint8)
            if round_number % 2:
                frames[:, 10:] = 0  # compressible
            observation = {
                "observation.frame": frames,
                "observation.kind": random.integers(0, 5, num_envs),
                "observation.level": random.normal(size=(num_envs, 3)),
            }
            reply = await stream.act(observation, np.zeros(num_envs, bool))
            np.testing.assert_array_equal(reply.outputs["action"], expected_actions(observation))

    def expected_actions(observation: Columns) -> np.ndarray:
        with torch.no_grad():
            tensors = {name: torch.from_numpy(array) for name, array in observation.items()}
            everybody = torch.ones(num_envs, dtype=torch.bool)
            acted = policy.act(tensors, everybody, {}, Choice(greedy=everybody))
            return acted.outputs["action"].numpy()

    run(scenario, weights=False, spec=MIXED, policy=policy_config)
