"""Connections under faults: a server that is killed and comes back, frozen peers, silent streams."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal.config.connections import RpcSection
from shoal.rpc.backoff import Backoff
from tests.service.rpc_echo import Echo, dialled, method, register, running_server
from tests.service.rpc_processes import PATIENCE_S, announced, child, wait_frozen

# The smallest that the configuration allows, to keep the tests short.
QUICK = RpcSection(keepalive_s=1.0, keepalive_timeout_s=0.5)


def _listen(kind: str, directory: Path) -> str:
    if kind == "unix":
        return f"unix:{directory}/a.sock"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _serving(listen: str, announce: Path) -> list[str]:
    return ["--set", f"replay.listen.grpc={listen}", "--set", f"replay.listen.announce={announce}"]


async def _until_answered(channel: grpc.aio.Channel, backoff: Backoff) -> None:
    while True:
        try:
            await method(channel, "Unary")(b"x", timeout=5)
            return
        except grpc.aio.AioRpcError:
            await asyncio.sleep(backoff.next_delay())


async def _until_failed(channel: grpc.aio.Channel, times: int) -> None:
    """Call in vain often enough for the channel's own back-off to have grown."""
    backoff, failures = Backoff(max_s=2.0), 0
    while failures < times:
        try:
            await method(channel, "Unary")(b"x", timeout=5)
        except grpc.aio.AioRpcError:
            failures += 1
            await asyncio.sleep(backoff.next_delay())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_client_is_back_within_5_s_of_the_server(tmp_path: Path, kind: str) -> None:
    listen, announce = _listen(kind, tmp_path), tmp_path / "announce.json"

    async def run() -> float:
        async with dialled(listen) as channel:
            with child("serve", *_serving(listen, announce)) as first:
                await asyncio.to_thread(announced, first, announce)
                await asyncio.wait_for(_until_answered(channel, Backoff()), PATIENCE_S)
                stream = method(channel, "Hold")(b"")
                assert await stream.read() == b"held"
                first.send_signal(signal.SIGKILL)
                with pytest.raises(grpc.aio.AioRpcError):
                    await stream.read()
            await _until_failed(channel, 8)
            with child("serve", *_serving(listen, announce)) as second:
                await asyncio.to_thread(announced, second, announce)
                begin = time.monotonic()
                await asyncio.wait_for(_until_answered(channel, Backoff()), 5.0)
                return time.monotonic() - begin

    took = asyncio.run(run())
    print(f"back after a restart of the server over {kind}: {took:.2f} s")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_frozen_server_is_noticed_by_its_client(tmp_path: Path, kind: str) -> None:
    listen, announce = _listen(kind, tmp_path), tmp_path / "announce.json"

    async def run() -> float:
        with child("serve", *_serving(listen, announce)) as process:
            address = (await asyncio.to_thread(announced, process, announce))["grpc"]
            async with dialled(address, rpc=QUICK) as channel, grpc.aio.insecure_channel(address) as deaf:
                call, control = method(channel, "Hold")(b""), method(deaf, "Hold")(b"")
                assert await call.read() == await control.read() == b"held"
                pending = asyncio.create_task(control.read())
                wait_frozen(process)
                begin = time.monotonic()
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await asyncio.wait_for(call.read(), PATIENCE_S)
                took = time.monotonic() - begin
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
                # Control: a channel with gRPC's defaults has noticed nothing.
                assert not pending.done()
                pending.cancel()
                process.send_signal(signal.SIGCONT)
                await asyncio.wait_for(_until_answered(channel, Backoff()), PATIENCE_S)
                return took

    took = asyncio.run(run())
    print(f"frozen server noticed over {kind} (keepalive 1 s, timeout 0.5 s): {took:.2f} s")


def test_a_frozen_client_is_noticed_by_the_server() -> None:
    async def run() -> float:
        echo = Echo()
        async with running_server(echo, rpc=QUICK) as server:
            with child("hold", "--set", f"addresses.replay=[{server.address!r}]") as process:
                await asyncio.wait_for(echo.until_running(1), PATIENCE_S)
                wait_frozen(process)
                begin = time.monotonic()
                await asyncio.wait_for(echo.until_running(0), PATIENCE_S)
                return time.monotonic() - begin

    took = asyncio.run(run())
    print(f"frozen client noticed (keepalive 1 s, timeout 0.5 s): {took:.2f} s")


@asynccontextmanager
async def _server_of_defaults() -> AsyncIterator[str]:
    """A gRPC server as it comes."""
    server = grpc.aio.server()
    register(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def test_pings_on_a_silent_connection_are_welcome() -> None:
    """Four pings without data make a server with gRPC's defaults hang up; ours must not."""

    async def run() -> None:
        async with (
            running_server(Echo()) as server,
            _server_of_defaults() as other,
            dialled(server.address, rpc=QUICK) as channel,
            dialled(server.address, rpc=QUICK) as idle,
            dialled(other, rpc=QUICK) as control,
        ):
            await method(idle, "Unary")(b"x")
            ours, theirs = method(channel, "Hold")(b""), method(control, "Hold")(b"")
            assert await ours.read() == await theirs.read() == b"held"
            pending = asyncio.create_task(ours.read())
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await asyncio.wait_for(theirs.read(), PATIENCE_S)
            assert "Too many pings" in str(raised.value.details())
            # Ours has had as many pings by now; one more says that the connection is alive.
            await method(channel, "Unary")(b"x")
            assert not pending.done()
            assert idle.get_state() is grpc.ChannelConnectivity.READY
            pending.cancel()

    asyncio.run(run())


def test_handlers_of_clients_that_leave_are_cancelled_and_leave_nothing_behind() -> None:
    async def run() -> None:
        echo = Echo()
        async with running_server(echo) as server:
            for _ in range(20):
                async with dialled(server.address) as channel:
                    calls: list[Any] = [method(channel, "Hold")(b"") for _ in range(3)]
                    for call in calls:
                        assert await call.read() == b"held"
                    calls[0].cancel()
                await asyncio.wait_for(echo.until_running(0), PATIENCE_S)
            # gRPC's own name for the task of a call.
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "rpc_task"))

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
