"""Every status that the replay service ends a call with, through a real server and raw messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import SecretStr

from services.replay.drain import hand_over
from shoal.clients.replay import Outcome
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.config.tree import LimitsSection, QueueTable, SecuritySection
from shoal.errors import ResourceExhaustedError, UnauthenticatedError, UnavailableError
from shoal.records import PROTOCOL_VERSION, Life
from shoal.rpc.channel import open_channel
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc
from tests.service.replay_server import LIMITS, OPEN, RPC, Served, served, until
from tests.unit.replay.payloads import payload

LIFE = Life("actor", "run")
PAYLOAD = payload()
HELLO = pb.AppendHello(protocol_version=PROTOCOL_VERSION, actor_id="actor", run_id="run", table="train")
SECRET = SecuritySection(token=SecretStr("right-and-long-enough"))
WRONG = SecuritySection(token=SecretStr("wrong-and-long-enough"))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


async def ending(call: Any, *requests: Any) -> tuple[grpc.StatusCode, str]:
    """Send and read until the call is over."""
    for request in requests:
        await call.write(request)
    while not call.done():
        try:
            if await call.read() is grpc.aio.EOF:
                break
        except grpc.aio.AioRpcError:
            break
    return await call.code(), await call.details()


@pytest.mark.parametrize(
    ("requests", "code", "text"),
    [
        ([pb.AppendRequest()], "INVALID_ARGUMENT", "expected a hello"),
        ([pb.AppendRequest(item=pb.AppendItem(sequence=1))], "INVALID_ARGUMENT", "expected a hello"),
        ([pb.AppendRequest(hello=HELLO)] * 2, "INVALID_ARGUMENT", "expected an item"),
        ([pb.AppendRequest(hello=HELLO), pb.AppendRequest()], "INVALID_ARGUMENT", "expected an item"),
        (
            [pb.AppendRequest(hello=pb.AppendHello(protocol_version=99, table="train"))],
            "FAILED_PRECONDITION",
            "version 99",
        ),
        (
            [pb.AppendRequest(hello=pb.AppendHello(protocol_version=PROTOCOL_VERSION, table="train"))],
            "INVALID_ARGUMENT",
            "actor_id",
        ),
    ],
)
def test_append_stream_that_breaks_the_protocol(
    tmp_path: Path, requests: list[pb.AppendRequest], code: str, text: str
) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            channel = open_channel(server.address, OPEN, LIMITS, RPC)
            got, details = await ending(pb_grpc.ReplayServiceStub(channel).Append(), *requests)
            assert (got.name, text in details) == (code, True), details
            await channel.close()

    run(test)


@pytest.mark.parametrize("method", ["Append", "Sample"])
def test_malformed_bytes_on_a_stream(tmp_path: Path, method: str) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            channel = open_channel(server.address, OPEN, LIMITS, RPC)
            call = channel.stream_stream(f"/shoal.v1.ReplayService/{method}")()
            code, _ = await ending(call, b"\xff\xff\xff not a message")
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            await assert_serves(server)
            await channel.close()

    run(test)


@pytest.mark.parametrize("method", ["UpdatePriorities", "Stats"])
def test_malformed_bytes_in_a_call(tmp_path: Path, method: str) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            channel = open_channel(server.address, OPEN, LIMITS, RPC)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/shoal.v1.ReplayService/{method}")(b"\xff\xff\xff not a message")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await channel.close()

    run(test)


def test_streams_that_are_opened_and_closed_leave_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            before = len(asyncio.all_tasks())
            channel = open_channel(server.address, OPEN, LIMITS, RPC)
            stub = pb_grpc.ReplayServiceStub(channel)
            for call in (stub.Append(), stub.Sample()):
                await call.done_writing()
                assert await call.code() is grpc.StatusCode.OK
            for _ in range(20):
                client = server.client()
                append = await client.open_append(LIFE, "train")
                sample = await client.open_sample("train")
                await sample.request(1)
                await append.close()
                await sample.close()
                await client.close()
            await channel.close()

            async def all_gone() -> bool:
                return server.servicer.num_sample_streams == 0 and len(asyncio.all_tasks()) <= before

            await until(all_gone)

    run(test)


@pytest.mark.parametrize("security", [OPEN, WRONG], ids=["no token", "wrong token"])
def test_without_the_right_token_every_rpc_is_refused(tmp_path: Path, security: SecuritySection) -> None:
    async def test() -> None:
        async with served(tmp_path, security=SECRET) as server:
            client = server.client(security)
            with pytest.raises(UnauthenticatedError):
                await opened(client)
            sample = await client.open_sample("train")
            with pytest.raises(UnauthenticatedError):
                await sample.receive()
            with pytest.raises(UnauthenticatedError):
                await client.update_priorities("train", [1], [1.0])
            with pytest.raises(UnauthenticatedError):
                await client.stats()
            await client.close()
            await assert_serves(server, SECRET)

    run(test)


def test_a_message_above_the_limit_ends_the_stream_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        async with served(tmp_path, limits=limits) as server:
            client = server.client(limits=LIMITS)
            append = await client.open_append(LIFE, "train")
            await append.send(0, b"x" * (1 << 17))
            with pytest.raises(ResourceExhaustedError):
                await append.receive()
            await client.close()
            await assert_serves(server)

    run(test)


def test_an_item_that_fills_a_message_is_refused_on_the_way_in_not_on_the_way_out(tmp_path: Path) -> None:
    """What gets in can be handed out, also with the longest names that are allowed."""

    async def test() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        async with served(tmp_path, limits=limits, table=QueueTable(max_items=100)) as server:
            client = server.client(limits=limits)
            append = await client.open_append(Life("ä" * 128, "ö" * 128), "train")
            sample = await client.open_sample("train")
            outcomes = set()
            for width in range(7600, 8100, 20):
                item = payload(rows=2, envs=1, width=width)
                await append.send(width, item)
                outcome = (await append.receive()).outcome
                outcomes.add(outcome)
                if outcome is Outcome.STORED:
                    await sample.request(100)
                    (got,) = (await sample.receive()).items
                    assert got.payload == item
            assert outcomes == {Outcome.STORED, Outcome.REJECTED}
            await client.close()

    run(test)


def test_a_drain_hands_over_what_is_stored_and_then_ends_the_streams(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            client = server.client()
            append = await client.open_append(LIFE, "train")
            sample = await client.open_sample("train")
            for sequence in range(3):
                await append.send(sequence, PAYLOAD)
                await append.receive()
            await sample.request(1)
            await sample.receive()
            draining = asyncio.ensure_future(hand_over(server.shard, server.servicer, 30.0))
            with pytest.raises(UnavailableError, match="draining"):
                await append.receive()
            with pytest.raises(UnavailableError, match="draining"):
                await client.open_append(LIFE, "train")
            for sequence in (1, 2):
                await sample.request(1)
                assert (await sample.receive()).items[0].sequence == sequence
            with pytest.raises(UnavailableError, match="draining"):
                await sample.receive()
            assert await draining == 0
            await client.close()

    run(test)


def test_a_drain_waits_for_a_sampler_that_may_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            await assert_serves(server)
            draining = asyncio.ensure_future(hand_over(server.shard, server.servicer, 3600.0))
            client = server.client()
            sample = await client.open_sample("train")
            await sample.request(1)
            assert len((await sample.receive()).items) == 1
            assert await draining == 0
            await client.close()

    run(test)


def test_a_drain_ends_in_time_without_a_sampler(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            await assert_serves(server)
            assert await hand_over(server.shard, server.servicer, 0.1) == 1

    run(test)


async def opened(client: GrpcReplayClient) -> None:
    """Dial as the writer does. A write that meets the end of a call makes gRPC forget the shard's reason."""
    for _ in range(10):
        with contextlib.suppress(UnavailableError):
            await client.open_append(LIFE, "train")
            return


async def assert_serves(server: Served, security: SecuritySection = OPEN) -> None:
    """An honest client gets through."""
    client = server.client(security)
    append = await client.open_append(Life("honest", "run"), "train")
    await append.send(0, PAYLOAD)
    assert (await append.receive()).outcome is Outcome.STORED
    await client.close()
