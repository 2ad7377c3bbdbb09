"""Torn pushes, refused calls and a learner that dies in the middle: mixed weights never surface."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from safetensors.numpy import load

from services.learner.metrics import LearnerMetrics
from services.learner.publisher import WeightsPublisher
from services.learner.servicer import WeightsServicer
from services.learner.versions import VersionCounter
from shoal.clients.weights import policy_text
from shoal.clients.weights_grpc import GrpcWeightsClient
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.network import PolicySection
from shoal.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    LimitError,
    ProtocolVersionError,
    UnauthenticatedError,
    UnavailableError,
)
from shoal.records import DEFAULT_POLICY, PROTOCOL_VERSION, ArraySpec, DiscreteAction, EnvSpec
from shoal.rpc.addresses import Address, AddressBook
from shoal.rpc.channel import open_channel
from shoal.rpc.server import RpcServer
from shoal.rpc.status import from_rpc_error
from shoal.v1 import weights_service_pb2 as pb
from shoal.v1 import weights_service_pb2_grpc as pb_grpc
from shoal.wire import spec_to_proto

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
POLICY = policy_text(PolicySection())
SECURITY, LIMITS, RPC = SecuritySection(), LimitsSection(), RpcSection()
ROOT = Path(__file__).parents[2]

Tamper = Callable[[pb.SubscribeResponse], list[pb.SubscribeResponse]]


class TamperingContext:
    """Stands between the servicer and gRPC, as a broken network would."""

    def __init__(self, context: Any, tamper: Tamper) -> None:
        self._context = context
        self._tamper = tamper

    async def write(self, chunk: pb.SubscribeResponse) -> None:
        for message in self._tamper(chunk):
            await self._context.write(message)


class TamperingServicer(WeightsServicer):
    tamper: Tamper | None = None

    async def Subscribe(self, request: Any, context: Any) -> None:
        tampered: Any = context if self.tamper is None else TamperingContext(context, self.tamper)
        await super().Subscribe(request, tampered)


@asynccontextmanager
async def serving(
    tmp_path: Path, security: SecuritySection = SECURITY
) -> AsyncIterator[tuple[WeightsPublisher, TamperingServicer, Address]]:
    publisher = WeightsPublisher(VersionCounter(tmp_path / "v"), PolicySection())
    servicer = TamperingServicer({DEFAULT_POLICY: publisher}, LearnerMetrics(CollectorRegistry()))
    server = RpcServer("127.0.0.1:0", "", security, LIMITS, RPC)
    servicer.add_to(server)
    await server.start()
    (address,) = await AddressBook([server.address], RPC).resolve()
    try:
        yield publisher, servicer, address
    finally:
        publisher.close()
        await server.drain(0.5)


def flip(chunk: pb.SubscribeResponse) -> list[pb.SubscribeResponse]:
    data = bytearray(chunk.data)
    data[len(data) // 2] ^= 4
    chunk.data = bytes(data)
    return [chunk]


def drop_second(chunk: pb.SubscribeResponse) -> list[pb.SubscribeResponse]:
    return [] if chunk.offset == 1 << 20 else [chunk]


def repeat(chunk: pb.SubscribeResponse) -> list[pb.SubscribeResponse]:
    return [chunk, chunk]


def shorten(chunk: pb.SubscribeResponse) -> list[pb.SubscribeResponse]:
    chunk.data = chunk.data[:-1]
    return [chunk]


def relabel(chunk: pb.SubscribeResponse) -> list[pb.SubscribeResponse]:
    chunk.version += chunk.offset >> 20
    return [chunk]


@pytest.mark.parametrize("tamper", [flip, drop_second, repeat, shorten, relabel])
def test_a_torn_push_never_surfaces_and_the_next_subscription_is_whole(
    tmp_path: Path, tamper: Tamper
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (publisher, servicer, address):
            publisher.publish(7, {"a": np.full(1 << 20, 7, np.float32)})
            client = GrpcWeightsClient(address, SECURITY, LIMITS, RPC)
            servicer.tamper = tamper
            with pytest.raises(UnavailableError) as caught:
                await anext(aiter(client.subscribe("i", SPEC, POLICY, -1)))
            print(f"{tamper.__name__}: {caught.value}")
            servicer.tamper = None
            snapshot = await anext(aiter(client.subscribe("i", SPEC, POLICY, -1)))
            assert (load(snapshot.data)["a"] == 7).all()
            await client.close()

    asyncio.run(asyncio.wait_for(main(), 30.0))


def test_a_size_above_the_limit_is_the_users_to_mend(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (publisher, _, address):
            publisher.publish(7, {"a": np.zeros(1 << 20, np.float32)})
            client = GrpcWeightsClient(address, SECURITY, LimitsSection(max_tensor_bytes=1 << 20), RPC)
            with pytest.raises(LimitError, match=r"limits\.max_tensor_bytes \(1048576\)"):
                await anext(aiter(client.subscribe("i", SPEC, POLICY, -1)))
            await client.close()

    asyncio.run(asyncio.wait_for(main(), 30.0))


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_the_token_nothing_is_sent_and_no_spec_is_taken(tmp_path: Path, token: str | None) -> None:
    async def main() -> None:
        right = SecuritySection(token=SecretStr("right"))
        given = SecuritySection(token=SecretStr(token)) if token else SECURITY
        async with serving(tmp_path, right) as (publisher, _, address):
            publisher.publish(7, {"a": np.zeros(4, np.float32)})
            client = GrpcWeightsClient(address, given, LIMITS, RPC)
            with pytest.raises(UnauthenticatedError):
                await anext(aiter(client.subscribe("i", SPEC, POLICY, -1)))
            other = EnvSpec("Other-v0", SPEC.observation, SPEC.action)
            honest = GrpcWeightsClient(address, right, LIMITS, RPC)
            assert (await anext(aiter(honest.subscribe("i", other, POLICY, -1)))).version == 7
            await client.close()
            await honest.close()

    asyncio.run(asyncio.wait_for(main(), 30.0))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"protocol_version": 99}, ProtocolVersionError),
        ({"spec": None}, InvalidArgumentError),
        ({"current_version": -2}, InvalidArgumentError),
        ({"policy": ""}, FailedPreconditionError),
        ({"policy_name": "other"}, FailedPreconditionError),
        ({"policy_name": ""}, FailedPreconditionError),
    ],
)
def test_malformed_requests_are_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception]
) -> None:
    good: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "subscriber_id": "i",
        "spec": spec_to_proto(SPEC),
        "current_version": -1,
        "policy": POLICY,
        "policy_name": DEFAULT_POLICY,
    }
    request_ = pb.SubscribeRequest(**{**good, **change})

    async def main() -> None:
        async with serving(tmp_path) as (_, _, address):
            channel = open_channel(address, SECURITY, LIMITS, RPC)
            call = pb_grpc.WeightsServiceStub(channel).Subscribe(request_)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_rpc_error(caught.value), error)
            await channel.close(None)

    asyncio.run(asyncio.wait_for(main(), 30.0))


async def start_server(path: Path, num_floats: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("weights_server.py")),
        str(path),
        str(num_floats),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


def test_kill_in_the_middle_of_a_push(tmp_path: Path) -> None:
    """Versions of 32 MiB from a process that is killed at random moments: all that surface are whole."""

    async def main() -> None:
        rng = random.Random(1)
        path = tmp_path / "s"
        surfaced = mixed = broken = 0
        for _ in range(4):
            process = await start_server(path, 8 << 20)
            client = GrpcWeightsClient(Address(f"unix:{path}"), SECURITY, LIMITS, RPC)
            left = rng.randint(1, 3)
            try:
                async for snapshot in client.subscribe("i", SPEC, POLICY, -1):
                    surfaced += 1
                    (array,) = load(snapshot.data).values()
                    mixed += int((array != snapshot.version).any())
                    left -= 1
                    if left == 0:
                        # The next push is on its way by now.
                        asyncio.get_running_loop().call_later(rng.uniform(0.0, 0.03), process.kill)
            except UnavailableError:
                broken += 1
            finally:
                await client.close()
                await process.wait()
                path.unlink(missing_ok=True)
        print(
            f"4 learners killed during pushes: {surfaced} versions surfaced, {mixed} mixed, {broken} breaks"
        )
        assert mixed == 0
        assert broken == 4
        assert surfaced >= 4

    asyncio.run(asyncio.wait_for(main(), 90.0))
