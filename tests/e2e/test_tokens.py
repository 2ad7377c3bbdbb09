"""Nobody without the token reaches any RPC of any service. The RPCs are enumerated from the descriptors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from shoal.config import Config, load_config
from shoal.v1 import inference_service_pb2, replay_service_pb2, weights_service_pb2
from tests.e2e.programs import TOKEN, Programs, programs

pytestmark = pytest.mark.timeout(300)

SERVERS = {
    "inference-0": inference_service_pb2,
    "replay-0": replay_service_pb2,
    "learner-0": weights_service_pb2,
}
METHODS = [
    (server, method)
    for server, module in SERVERS.items()
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
Metadata = tuple[tuple[str, str], ...]
CREDENTIALS: dict[str, Metadata] = {
    "no token": (),
    "wrong token": (("authorization", "Bearer wrong"),),
    "empty token": (("authorization", "Bearer "),),
    "prefix of the token": (("authorization", f"Bearer {TOKEN[:-1]}"),),
    "another scheme": (("authorization", f"Basic {TOKEN}"),),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    run_dir: Path = tmp_path_factory.mktemp("run")
    config: Config = load_config(None, [f"run.dir={run_dir}"], {})
    with programs(config) as started:
        for server in SERVERS:
            started.start(server)
        for server in SERVERS:
            started.announced(server)
        yield started


async def status(
    address: str, method: MethodDescriptor, metadata: Metadata, *, send: bool
) -> grpc.StatusCode:
    """How the call ends when an empty request, which is no bytes at all, is all that is sent.

    A stream that is to be refused sends not even that: a write that meets the refusal would be reported as
    gRPC's own failure instead.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(30):
        with contextlib.suppress(grpc.aio.AioRpcError):
            if not method.server_streaming:
                call = channel.unary_unary(path)(b"", metadata=metadata)
                await call
            elif not method.client_streaming:
                call = channel.unary_stream(path)(b"", metadata=metadata)
                await call.read()
            else:
                call = channel.stream_stream(path)(metadata=metadata)
                if send:
                    await call.write(b"")
                    await call.done_writing()
                await call.read()
        return await call.code()


@pytest.mark.parametrize(("server", "method"), METHODS, ids=lambda value: getattr(value, "full_name", value))
@pytest.mark.parametrize("credentials", CREDENTIALS)
def test_every_rpc_refuses(
    running: Programs, server: str, method: MethodDescriptor, credentials: str
) -> None:
    address = running.announced(server)["grpc"]
    code = asyncio.run(status(address, method, CREDENTIALS[credentials], send=False))
    assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(("server", "method"), METHODS, ids=lambda value: getattr(value, "full_name", value))
def test_with_the_token_every_rpc_is_reached(
    running: Programs, server: str, method: MethodDescriptor
) -> None:
    """The control: the same call with the token gets past the door."""
    address = running.announced(server)["grpc"]
    code = asyncio.run(status(address, method, (("authorization", f"Bearer {TOKEN}"),), send=True))
    assert code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)


def test_all_services_of_the_protocol_are_covered() -> None:
    assert len(METHODS) == 6
