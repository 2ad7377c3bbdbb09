"""A small service of raw bytes for the tests of `shoal.rpc`, and what every such test needs to run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal import errors
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.rpc.addresses import Address, AddressBook
from shoal.rpc.channel import open_channel
from shoal.rpc.server import RpcServer

SERVICE = "test.Echo"
LIMITS = LimitsSection()
RPC = RpcSection()
OPEN = SecuritySection()
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Echo:
    """Remembers what was decoded, so that a test can see that nothing was."""

    def __init__(self) -> None:
        self.decoded: list[bytes] = []
        self.running = 0
        self.changed = asyncio.Condition()
        self.release = asyncio.Event()

    async def unary(self, request: bytes, context: Any) -> bytes:
        return request

    async def collect(self, requests: Any, context: Any) -> bytes:
        parts = []
        while (request := await context.read()) is not grpc.aio.EOF:
            parts.append(request)
        return b"".join(parts)

    async def bidi(self, requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)

    async def hold(self, request: bytes, context: Any) -> None:
        """Answers once at the start, and again when the test says so."""
        await self._count(+1)
        try:
            await context.write(b"held")
            await self.release.wait()
            await context.write(b"released")
        finally:
            await self._count(-1)

    async def fail(self, request: bytes, context: Any) -> bytes:
        """Raises the named error."""
        raise getattr(errors, request.decode(), RuntimeError)(f"text of {request.decode()}")

    async def parse(self, request: Any, context: Any) -> bytes:
        return bytes(request.service, "utf-8")

    async def until_running(self, number: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.running == number)

    async def _count(self, by: int) -> None:
        async with self.changed:
            self.running += by
            self.changed.notify_all()

    def decode(self, data: bytes) -> bytes:
        self.decoded.append(data)
        return data


def register(echo: Echo, server: grpc.aio.Server) -> None:
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(echo.unary, echo.decode),
        "Collect": grpc.stream_unary_rpc_method_handler(echo.collect, echo.decode),
        "Bidi": grpc.stream_stream_rpc_method_handler(echo.bidi, echo.decode),
        "Hold": grpc.unary_stream_rpc_method_handler(echo.hold, echo.decode),
        "Fail": grpc.unary_unary_rpc_method_handler(echo.fail),
        "Parse": grpc.unary_unary_rpc_method_handler(echo.parse, health_pb2.HealthCheckRequest.FromString),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def make_server(
    echo: Echo, listen: str = "127.0.0.1:0", security: SecuritySection = OPEN, rpc: RpcSection = RPC
) -> RpcServer:
    server = RpcServer(listen, "127.0.0.1:0", security, LIMITS, rpc)
    server.add(register, echo, SERVICE)
    return server


async def resolve_one(text: str) -> Address:
    (address,) = await AddressBook([text], RPC).resolve()
    return address


@asynccontextmanager
async def running_server(
    echo: Echo, listen: str = "127.0.0.1:0", security: SecuritySection = OPEN, rpc: RpcSection = RPC
) -> AsyncIterator[RpcServer]:
    server = make_server(echo, listen, security, rpc)
    await server.start()
    try:
        yield server
    finally:
        await server.drain(0.0)


@asynccontextmanager
async def dialled(
    text: str, security: SecuritySection = OPEN, rpc: RpcSection = RPC
) -> AsyncIterator[grpc.aio.Channel]:
    channel = open_channel(await resolve_one(text), security, LIMITS, rpc)
    try:
        yield channel
    finally:
        await channel.close()


def method(channel: grpc.aio.Channel, name: str) -> Any:
    kinds = {"Collect": channel.stream_unary, "Bidi": channel.stream_stream, "Hold": channel.unary_stream}
    return kinds.get(name, channel.unary_unary)(f"/{SERVICE}/{name}")


async def health_of(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        return int(reply.status)
