"""A real server and real channels: status, tokens, limits, drain, health."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from shoal import errors
from shoal.config.connections import LimitsSection, SecuritySection
from shoal.errors import InvalidArgumentError, ProtocolVersionError, ShoalError, UnavailableError
from shoal.rpc import probe
from shoal.rpc.channel import open_channel
from shoal.rpc.server import RpcServer
from shoal.rpc.status import ERROR_KEY, from_rpc_error
from tests.service.rpc_echo import (
    NOT_SERVING,
    OPEN,
    RPC,
    SERVICE,
    SERVING,
    Echo,
    dialled,
    health_of,
    make_server,
    method,
    register,
    resolve_one,
    running_server,
)

TOKEN = SecuritySection(token=SecretStr("right"))
CLASSES = [
    name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, ShoalError)
]


async def _error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def _every_kind(channel: grpc.aio.Channel) -> list[bytes]:
    """One call of each kind; what came back."""
    held = method(channel, "Hold")(b"4")
    collected = method(channel, "Collect")()
    echoed = method(channel, "Bidi")()
    await collected.write(b"2")
    await collected.done_writing()
    await echoed.write(b"3")
    replies = [await method(channel, "Unary")(b"1"), await collected, await echoed.read(), await held.read()]
    await echoed.done_writing()
    held.cancel()
    return replies


def test_every_error_class_arrives_as_itself() -> None:
    async def run() -> None:
        async with running_server(Echo()) as server, dialled(server.address) as channel:
            for name in CLASSES:
                error = await _error_of(method(channel, "Fail")(name.encode()))
                back = from_rpc_error(error)
                assert (type(back).__name__, str(back)) == (name, f"text of {name}")

    asyncio.run(run())


def test_a_bug_is_logged_here_and_tells_the_peer_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running_server(Echo()) as server, dialled(server.address) as channel:
            error = await _error_of(method(channel, "Fail")(b"secret"))
            assert error.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in str(error.details())
            assert ERROR_KEY not in dict(error.trailing_metadata())
            assert isinstance(from_rpc_error(error), UnavailableError)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "RuntimeError: text of secret" in caplog.text


def test_malformed_messages_and_unknown_methods_are_refused_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with running_server(Echo()) as server, dialled(server.address) as channel:
            error = await _error_of(method(channel, "Parse")(b"\xff\xff\xff"))
            assert type(from_rpc_error(error)) is InvalidArgumentError
            assert await method(channel, "Parse")(
                health_pb2.HealthCheckRequest(service="a").SerializeToString()
            )
            error = await _error_of(method(channel, "Nothing")(b""))
            assert type(from_rpc_error(error)) is ProtocolVersionError

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert not caplog.records


def test_a_long_error_text_still_arrives() -> None:
    class Wordy(Echo):
        async def unary(self, request: bytes, context: Any) -> bytes:
            raise errors.SpecMismatchError(request.decode() * 100_000)

    async def run() -> None:
        async with running_server(Wordy()) as server, dialled(server.address) as channel:
            for char in ("x", "\n", "ü", "\U0001f41f"):
                back = from_rpc_error(await _error_of(method(channel, "Unary")(char.encode())))
                assert type(back) is errors.SpecMismatchError
                assert str(back).endswith(f"{char}...")

    asyncio.run(run())


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:{}/a.sock"])
def test_the_token_goes_with_every_kind_of_call(tmp_path: Path, listen: str) -> None:
    async def run() -> None:
        async with (
            running_server(Echo(), listen.format(tmp_path), TOKEN) as server,
            dialled(server.address, TOKEN) as channel,
        ):
            assert await _every_kind(channel) == [b"1", b"2", b"3", b"held"]

    asyncio.run(run())


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:{}/a.sock"])
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "right"),),
        (("authorization", "Bearer right"), ("authorization", "Bearer right")),
        (("Authorization-bin".lower(), b"Bearer right"),),
    ],
)
def test_calls_without_the_right_token_are_refused_before_decoding(
    tmp_path: Path, listen: str, metadata: Any
) -> None:
    async def run() -> None:
        echo = Echo()
        async with running_server(echo, listen.format(tmp_path), TOKEN) as server:
            async with dialled(server.address) as channel:
                held = method(channel, "Hold")(b"x", metadata=metadata)
                # Without a message: gRPC reports a write that meets its refusal as INTERNAL instead.
                collected = method(channel, "Collect")(metadata=metadata)
                echoed = method(channel, "Bidi")(metadata=metadata)
                calls = {
                    "Unary": method(channel, "Unary")(b"x", metadata=metadata),
                    "Nothing": method(channel, "Nothing")(b"x", metadata=metadata),
                    "Collect": collected,
                    "Hold": held.read(),
                    "Bidi": echoed.read(),
                }
                for name, call in calls.items():
                    error = await _error_of(call)
                    assert error.code() is grpc.StatusCode.UNAUTHENTICATED, name
                    assert "security.token" in str(error.details())
                    assert type(from_rpc_error(error)) is errors.UnauthenticatedError
            assert echo.decoded == []
            async with dialled(server.address, TOKEN) as channel:
                assert await method(channel, "Unary")(b"y") == b"y"
            assert echo.decoded == [b"y"]

    asyncio.run(run())


def test_a_rotated_token_file_is_followed_by_both_ends(tmp_path: Path) -> None:
    def write(path: Path, text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", path)

    async def run() -> None:
        ours, theirs = tmp_path / "server", tmp_path / "client"
        write(ours, "old")
        write(theirs, "old")
        server_side, client_side = SecuritySection(token_file=ours), SecuritySection(token_file=theirs)
        async with (
            running_server(Echo(), security=server_side) as server,
            dialled(server.address, client_side) as channel,
        ):
            unary = method(channel, "Unary")
            assert await unary(b"1") == b"1"
            write(ours, "old\nnew")
            assert await unary(b"2") == b"2"
            write(theirs, "new")
            assert await unary(b"3") == b"3"
            write(ours, "new")
            assert await unary(b"4") == b"4"
            write(theirs, "old")
            assert (await _error_of(unary(b"5"))).code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(run())


def test_messages_above_the_limit_are_refused_and_the_next_is_served() -> None:
    async def run() -> None:
        async with running_server(Echo()) as default:
            limits = LimitsSection(max_message_bytes=1 << 16)
            server = RpcServer("127.0.0.1:0", "", OPEN, limits, RPC)
            server.add(register, Echo(), SERVICE)
            await server.start()
            async with dialled(server.address) as channel:
                error = await _error_of(method(channel, "Unary")(b"x" * (1 << 17)))
                assert type(from_rpc_error(error)) is errors.ResourceExhaustedError
                assert await method(channel, "Unary")(b"x") == b"x"
            await server.drain(0)
            # The largest limit that the configuration allows does not overflow gRPC's options.
            largest = LimitsSection(max_message_bytes=(1 << 31) - 1)
            channel = open_channel(await resolve_one(default.address), OPEN, largest, RPC)
            big = b"x" * (8 << 20)
            assert await method(channel, "Unary")(big) == big
            await channel.close()

    asyncio.run(run())


def test_streams_above_the_limit_of_a_connection_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.rpc.server.MAX_CONCURRENT_STREAMS", 2)

    async def run() -> None:
        echo = Echo()
        async with running_server(echo) as server, dialled(server.address) as channel:
            await method(channel, "Unary")(b"x")
            held = [method(channel, "Hold")(b"") for _ in range(3)]
            assert await held[0].read() == await held[1].read() == b"held"
            waiting = asyncio.create_task(held[2].read())
            async with dialled(server.address) as other:
                assert await method(other, "Unary")(b"x") == b"x"
            assert echo.running == 2
            assert not waiting.done()
            held[0].cancel()
            assert await waiting == b"held"

    asyncio.run(asyncio.wait_for(run(), 30))


def test_drain_refuses_new_calls_while_running_ones_finish() -> None:
    async def run() -> None:
        echo = Echo()
        server = make_server(echo)
        await server.start()
        async with dialled(server.address) as channel, dialled(server.address) as other:
            call = method(channel, "Hold")(b"")
            assert await call.read() == b"held"
            watch = health_watch(server.health_address)
            assert await anext(watch) == SERVING
            draining = asyncio.create_task(server.drain(60))
            assert await anext(watch) == NOT_SERVING
            await watch.aclose()
            server.set_serving(True)
            assert await health_of(server.health_address, SERVICE) == NOT_SERVING
            for fresh in (channel, other):
                error = await _error_of(method(fresh, "Unary")(b"x"))
                assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "draining")
                assert type(from_rpc_error(error)) is UnavailableError
            again = asyncio.create_task(server.drain(60))
            assert not draining.done()
            echo.release.set()
            assert await call.read() == b"released"
            assert await call.read() is grpc.aio.EOF
            await draining
            await again
            await server.drain(60)
            assert (await _error_of(method(channel, "Unary")(b"x"))).code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())


def test_what_outlives_the_grace_is_cut() -> None:
    class Stubborn(Echo):
        async def bidi(self, requests: Any, context: Any) -> None:
            while True:
                try:
                    await context.write(b"no")
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

    async def run() -> float:
        server = make_server(Stubborn())
        await server.start()
        async with dialled(server.address) as channel:
            calls = [method(channel, "Hold")(b"") for _ in range(3)]
            for call in calls:
                assert await call.read() == b"held"
            begin = time.monotonic()
            await server.drain(0.1)
            took = time.monotonic() - begin
            for call in calls:
                back = from_rpc_error(await _error_of(call.read()))
                assert type(back) is UnavailableError
                assert "draining" in str(back)
        server = make_server(Stubborn())
        await server.start()
        async with dialled(server.address) as channel:
            stubborn = method(channel, "Bidi")()
            assert await stubborn.read() == b"no"
            await server.drain(0.1)
            while (reply := await _read_or_code(stubborn)) == b"no":
                pass
            assert reply is grpc.StatusCode.UNAVAILABLE
            for task in asyncio.all_tasks():
                if task.get_name().startswith("HandleExceptions"):
                    task.cancel()
        return took

    took = asyncio.run(asyncio.wait_for(run(), 30))
    print(f"drain with a grace of 0.1 s and three calls that never end: {took:.3f} s")


async def _read_or_code(call: Any) -> Any:
    try:
        return await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()


async def health_watch(address: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        async for reply in call:
            yield reply.status


def test_health_flips_and_is_not_on_the_main_port() -> None:
    async def run() -> None:
        server = make_server(Echo(), security=TOKEN)
        server.set_serving(False)
        await server.start()
        assert await health_of(server.health_address) == NOT_SERVING
        watch = health_watch(server.health_address)
        assert await anext(watch) == NOT_SERVING
        server.set_serving(True)
        assert await anext(watch) == SERVING
        assert await health_of(server.health_address, SERVICE) == SERVING
        server.set_serving(False)
        assert await anext(watch) == NOT_SERVING
        await watch.aclose()
        async with dialled(server.address, TOKEN) as channel, dialled(server.health_address, TOKEN) as probe:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert (await _error_of(check(b""))).code() is grpc.StatusCode.UNIMPLEMENTED
            assert (await _error_of(method(probe, "Unary")(b""))).code() is grpc.StatusCode.UNIMPLEMENTED
        await server.drain(0)

    asyncio.run(run())


def test_without_a_listen_address_there_is_health_only() -> None:
    async def run() -> None:
        server = RpcServer("", "127.0.0.1:0", OPEN, LimitsSection(), RPC)
        await server.start()
        assert server.address == ""
        assert await health_of(server.health_address) == SERVING
        await server.drain(0)

    asyncio.run(run())


def test_a_probe_tells_what_it_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> str:
        server = RpcServer("", "127.0.0.1:0", OPEN, LimitsSection(), RPC)
        await server.start()
        assert await asyncio.to_thread(probe.main, [server.health_address]) == 0
        server.set_serving(False)
        assert await asyncio.to_thread(probe.main, [server.health_address]) == 1
        await server.drain(0)
        return server.health_address

    address = asyncio.run(run())
    assert probe.main([address]) == 1
    serving, not_serving, gone = capsys.readouterr().out.splitlines()
    assert (serving, not_serving) == ("SERVING", "NOT_SERVING")
    assert gone.startswith("no answer: UNAVAILABLE")
    assert probe.main(["nowhere"]) == 2
    assert probe.main([]) == 2
    assert "needs a port" in capsys.readouterr().err
