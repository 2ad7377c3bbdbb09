"""The server by its wire: handshake, broken messages, credentials, drain, replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from services.inference import servicer
from shoal.clients.stream_tensors import ColumnsWriter
from shoal.config.connections import SecuritySection
from shoal.config.tree import InferenceSection
from shoal.errors import UnauthenticatedError, UnavailableError
from shoal.records import PROTOCOL_VERSION, Columns
from shoal.v1 import inference_service_pb2 as pb
from shoal.wire import spec_to_proto, tensor_to_proto
from tests.service.inference_server import Served, served, socket_directory
from tests.unit.inference.tracer import SPEC, WeightsSource, assert_consistent, hello, snapshot, step, until

METHOD = "/shoal.v1.InferenceService/Act"
# gRPC hides the server's reason if a step and the end of the stream cross.
ENDED_BY_DRAIN = r"another replica|open a new one"


def run(scenario: Callable[[Served, WeightsSource], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        learner = WeightsSource()
        learner.publish(snapshot(0))
        with socket_directory() as directory:
            async with asyncio.timeout(60), served(directory, learner, **settings) as server:
                await scenario(server, learner)

    asyncio.run(main())


@asynccontextmanager
async def raw_stream(server: Served) -> AsyncIterator[Any]:
    """The Act call without the client: messages go as they are, bytes included."""
    async with grpc.aio.insecure_channel(server.server.address) as channel:
        act = channel.stream_stream(
            METHOD,
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=pb.ActResponse.FromString,
        )
        call = act()
        try:
            yield call
        finally:
            call.cancel()


def good_hello() -> pb.ActRequest:
    return pb.ActRequest(
        hello=pb.ActHello(
            protocol_version=PROTOCOL_VERSION,
            actor_id="actor-0",
            run_id="life-1",
            spec=spec_to_proto(SPEC),
            num_envs=3,
            greedy=True,
        )
    )


def good_step(number: int = 0) -> pb.ActRequest:
    observation, first = step()
    request = pb.ActRequest(step=pb.ActStep(step=number, first=tensor_to_proto(first, compress=False)))
    tensor = tensor_to_proto(observation["observation"], compress=False)
    request.step.observation.add(name="observation", tensor=tensor)
    return request


def changed(message: pb.ActRequest, change: Callable[[Any], object]) -> pb.ActRequest:
    change(message)
    return message


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


def test_the_step_number_is_echoed() -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        async with raw_stream(server) as call:
            await call.write(good_hello())
            assert (await call.read()).HasField("welcome")
            for number in (0, 1, 2**63):
                await call.write(good_step(number))
                actions = (await call.read()).actions
                assert actions.step == number
                assert actions.policy_version == 0

    run(scenario)


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (good_step(), grpc.StatusCode.INVALID_ARGUMENT, "expected a hello"),
        (pb.ActRequest(), grpc.StatusCode.INVALID_ARGUMENT, "expected a hello"),
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "no valid protocol buffer"),
        (
            changed(good_hello(), lambda m: setattr(m.hello, "protocol_version", 999)),
            grpc.StatusCode.FAILED_PRECONDITION,
            "999",
        ),
        (
            changed(good_hello(), lambda m: m.hello.ClearField("spec")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "no observation",
        ),
        (
            changed(good_hello(), lambda m: setattr(m.hello, "num_envs", 1 << 31)),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "inference.max_batch",
        ),
    ],
)
def test_a_wrong_first_message_is_refused(message: Any, code: grpc.StatusCode, text: str) -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        async with raw_stream(server) as call:
            await call.write(message)
            refused = await refusal(call)
            assert refused[0] is code
            assert text in refused[1]
        assert server.value("sessions") == 0

    run(scenario)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (good_hello(), "expected a step"),
        (pb.ActRequest(), "expected a step"),
        (b"\x12\x05abc", "no valid protocol buffer"),
        (changed(good_step(), lambda m: setattr(m.step.first, "crc32c", 1)), "CRC32C"),
        (changed(good_step(), lambda m: m.step.ClearField("first")), "dtype"),
        (changed(good_step(), lambda m: m.step.observation.add(name="more")), "'more' is unknown"),
        (changed(good_step(), lambda m: m.step.ClearField("observation")), "this stream has observation"),
        (
            changed(good_step(), lambda m: m.step.observation[0].tensor.shape.__setitem__(0, 1 << 62)),
            "above the limit",
        ),
        (
            changed(good_step(), lambda m: setattr(m.step.observation[0], "name", "other")),
            "'other' is unknown: this stream has observation",
        ),
    ],
)
def test_a_wrong_step_ends_its_stream_only(message: Any, text: str) -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        client = server.client()
        neighbour = await client.open(hello())
        async with raw_stream(server) as call:
            await call.write(good_hello())
            await call.read()
            await call.write(good_step())
            await call.read()
            await call.write(message)
            code, details = await refusal(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text in details
        assert server.value("refused_total") == (text not in ("expected a step", "no valid protocol buffer"))
        assert_consistent(await neighbour.act(*step()))
        await until(lambda: server.value("sessions") == 1)
        await client.close()

    run(scenario)


@pytest.mark.parametrize(
    ("tamper", "text"),
    [
        (lambda outputs: setattr(outputs[0].tensor, "crc32c", outputs[0].tensor.crc32c ^ 1), "CRC32C"),
        (lambda outputs: outputs.pop(), "columns action only"),
        (lambda outputs: setattr(outputs[1], "name", "value"), "'value' is unknown"),
        (
            lambda outputs: outputs[1].tensor.CopyFrom(tensor_to_proto(np.zeros(2, "f4"), compress=False)),
            r"float32\[2\] instead of log_prob float32\[3\]",
        ),
    ],
)
def test_a_broken_reply_ends_the_stream_and_not_the_actor(
    monkeypatch: pytest.MonkeyPatch, tamper: Callable[[Any], object], text: str
) -> None:
    class BrokenNetwork(ColumnsWriter):
        broken = False

        def write(self, columns: Columns) -> None:
            super().write(columns)
            if self.broken and columns:
                tamper(self._field)

    monkeypatch.setattr(servicer, "ColumnsWriter", BrokenNetwork)

    async def scenario(server: Served, _: WeightsSource) -> None:
        client = server.client()
        stream = await client.open(hello())
        await stream.act(*step())
        BrokenNetwork.broken = True
        with pytest.raises(UnavailableError, match=f"the server's reply is broken: .*{text}"):
            await stream.act(*step())
        await until(lambda: server.value("sessions") == 0)
        BrokenNetwork.broken = False
        assert_consistent(await (await client.open(hello())).act(*step()))
        await client.close()

    run(scenario)


def test_a_client_that_ends_before_its_hello_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        async with raw_stream(server) as call:
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    run(scenario)
    assert caplog.records == []


def test_a_call_without_the_token_is_refused() -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        for security in (SecuritySection(), SecuritySection(token="wrong")):
            client = server.client(security)
            with pytest.raises(UnauthenticatedError):
                await client.open(hello())
            await client.close()
        client = server.client(SecuritySection(token="secret"))
        assert_consistent(await (await client.open(hello())).act(*step()))
        await client.close()

    run(scenario, security=SecuritySection(token="secret"))


def test_a_client_that_vanishes_gives_its_slots_back() -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        stays, vanishes = server.client(), server.client()
        stream = await stays.open(hello())
        acting = [asyncio.ensure_future((await vanishes.open(hello())).act(*step())) for _ in range(3)]
        await asyncio.sleep(0)
        await vanishes.close()
        await asyncio.gather(*acting, return_exceptions=True)
        await until(lambda: server.value("sessions") == 1)
        assert server.value("env_slots") == 3
        assert_consistent(await stream.act(*step()))
        await stays.close()

    run(scenario)


def test_a_drain_ends_idle_streams_at_once_and_others_after_their_reply() -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        client = server.client()
        idle, busy = await client.open(hello()), await client.open(hello())
        await idle.act(*step())
        # Nothing runs before 6 rows wait or a second has passed: the drain finds this step in flight.
        acting = asyncio.ensure_future(busy.act(*step()))
        await until(lambda: any(session.waiter for session in server.engine._sessions.values()))
        server.engine.drain()
        await server.servicer.drain()
        with pytest.raises(UnavailableError, match=ENDED_BY_DRAIN):
            await idle.act(*step())
        assert_consistent(await acting)
        with pytest.raises(UnavailableError, match=ENDED_BY_DRAIN):
            await busy.act(*step())
        with pytest.raises(UnavailableError, match="another replica"):
            await client.open(hello())
        await until(lambda: server.value("sessions") == 0)
        await client.close()

    run(scenario, config=InferenceSection(min_batch=6, max_wait_ms=1000))


def test_a_server_under_load_drains_without_waiting_for_its_grace() -> None:
    async def actor(server: Served) -> int:
        client = server.client()
        num_replies = 0
        try:
            stream = await client.open(hello())
            while True:
                assert_consistent(await stream.act(*step()))
                num_replies += 1
        except UnavailableError:
            return num_replies
        finally:
            await client.close()

    async def scenario(server: Served, _: WeightsSource) -> None:
        actors = [asyncio.ensure_future(actor(server)) for _ in range(4)]
        await until(lambda: server.value("requests_total") > 50)
        server.engine.drain()
        await server.servicer.drain()
        await server.server.drain(60.0)
        replies = await asyncio.gather(*actors)
        assert min(replies) > 0
        assert sum(replies) == server.value("requests_total")

    run(scenario)


def test_requests_of_several_actors_share_batches() -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        client = server.client()
        streams = [await client.open(hello()) for _ in range(4)]
        for _ in range(5):
            replies = await asyncio.gather(*(stream.act(*step()) for stream in streams))
            for reply in replies:
                assert_consistent(reply)
        assert server.value("requests_total") == 20
        assert server.value("batches_total") == 5
        await client.close()

    run(scenario, config=InferenceSection(min_batch=12, max_wait_ms=1000))


def test_two_replicas_follow_one_learner_and_answer_for_each_other() -> None:
    async def main() -> None:
        learner = WeightsSource()
        learner.publish(snapshot(0))
        with socket_directory() as directory:
            async with (
                served(directory, learner, "replica-0") as one,
                served(directory, learner, "replica-1") as two,
            ):
                clients = one.client(), two.client()
                streams = [await client.open(hello()) for client in clients]
                assert [stream.welcome.server_id for stream in streams] == ["replica-0", "replica-1"]
                for version in (1, 2, 3):
                    learner.publish(snapshot(version))
                    await until(lambda v=version: one.engine.policy_version == two.engine.policy_version == v)
                    for stream in streams:
                        reply = await stream.act(*step())
                        assert reply.policy_version == version
                        assert_consistent(reply)
                one.engine.drain()
                await one.servicer.drain()
                with pytest.raises(UnavailableError):
                    await streams[0].act(*step())
                assert_consistent(await (await clients[1].open(hello())).act(*step()))
                assert two.value("requests_total") == 4
                for client in clients:
                    await client.close()

    asyncio.run(main())


def test_ten_thousand_envs_in_one_message() -> None:
    async def scenario(server: Served, _: WeightsSource) -> None:
        client = server.client()
        stream = await client.open(hello(10_000))
        reply = await stream.act(*step(10_000))
        assert_consistent(reply)
        assert reply.outputs["action"].shape == (10_000, 2)
        assert np.isfinite(reply.outputs["log_prob"]).all()
        await client.close()

    run(scenario, config=InferenceSection(max_batch=10_000))
