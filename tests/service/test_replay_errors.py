"""Every status that the replay service ends a call with, through a real server and raw messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from pydantic import SecretStr

from services.replay.drain import leave
from services.replay.shard import OPENING
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import MAX_EPISODES, Outcome, max_item_bytes
from shoal.config.connections import LimitsSection, SecuritySection
from shoal.config.tables import AnyTable, QueueTable, SequenceTable
from shoal.errors import ResourceExhaustedError, UnauthenticatedError, UnavailableError
from shoal.records import PROTOCOL_VERSION, Episode, Life
from shoal.rpc.channel import open_channel
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc
from shoal.v1 import spec_pb2, tensor_pb2
from shoal.wire import encode_trajectory
from tests.service.replay_server import LIMITS, OPEN, RPC, Served, append_of, served, until
from tests.unit.replay.payloads import payload, trajectory

LIFE = Life("actor", "run")
PAYLOAD = payload()
HELLO = pb.AppendHello(protocol_version=PROTOCOL_VERSION, actor_id="actor", run_id="run", table="train")
BEGUN = pb.AppendRequest(hello=HELLO)
KEYS = np.array([1], np.uint64)
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


def hello(**changes: Any) -> pb.AppendRequest:
    changed = pb.AppendHello()
    changed.CopyFrom(HELLO)
    for name, value in changes.items():
        if name == "declared":
            changed.declared.extend(value)
        else:
            setattr(changed, name, value)
    return pb.AppendRequest(hello=changed)


FLOATS, INTS = tensor_pb2.DTYPE_FLOAT32, tensor_pb2.DTYPE_INT64
SPEC = spec_pb2.ArraySpec(name="observation", dtype=FLOATS, shape=[4])


@pytest.mark.parametrize(
    ("requests", "code", "text"),
    [
        ([pb.AppendRequest()], "INVALID_ARGUMENT", "expected a hello"),
        ([pb.AppendRequest(items=pb.AppendItems(sequence=1))], "INVALID_ARGUMENT", "expected a hello"),
        ([BEGUN, BEGUN], "INVALID_ARGUMENT", "expected items"),
        ([BEGUN, pb.AppendRequest()], "INVALID_ARGUMENT", "expected items"),
        ([hello(protocol_version=99)], "FAILED_PRECONDITION", "version 99"),
        ([hello(actor_id="")], "INVALID_ARGUMENT", "actor_id"),
        ([hello(run_id="r" * 129)], "INVALID_ARGUMENT", "run_id has 129 characters"),
        ([hello(table="nope")], "NOT_FOUND", "there are train"),
        (
            [hello(declared=[SPEC, spec_pb2.ArraySpec(name="observation", dtype=INTS, shape=[4])])],
            "FAILED_PRECONDITION",
            "observation int64[4]",
        ),
        ([hello(declared=[spec_pb2.ArraySpec(name="x", dtype=99)])], "INVALID_ARGUMENT", "dtype 99"),
        (
            [hello(declared=[spec_pb2.ArraySpec(name="x", dtype=INTS, num_categories=-1)])],
            "INVALID_ARGUMENT",
            "-1 categories",
        ),
        (
            [hello(declared=[spec_pb2.ArraySpec(name="x", dtype=INTS, shape=[-1])])],
            "INVALID_ARGUMENT",
            "out of bounds",
        ),
        ([hello(declared=[SPEC] * 257)], "INVALID_ARGUMENT", "257 columns"),
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
                await client.update_priorities("train", KEYS, np.ones(1))
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
            await append.send(append_of(0, b"x" * (1 << 17)))
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
            for envs in range(6600, 7000, 20):
                item = payload(rows=2, envs=envs, width=1)
                await append.send(append_of(envs, item))
                outcome = (await append.receive()).outcome
                outcomes.add(outcome)
                if outcome is Outcome.STORED:
                    await sample.request(100)
                    (got,) = (await sample.receive()).items
                    assert got.payloads == (item,)
            assert outcomes == {Outcome.STORED, Outcome.REJECTED}
            await client.close()

    run(test)


def test_an_item_that_fills_a_message_and_all_that_is_told_of_episodes_fit(tmp_path: Path) -> None:
    async def test() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        async with served(tmp_path, limits=limits, table=SequenceTable(max_items=100)) as server:
            client = server.client(limits=limits)
            append = await client.open_append(Life("ä" * 128, "ö" * 128), "train")
            sample = await client.open_sample("train")
            await sample.request(0)
            await sample.receive()
            item, width = b"", 22
            while len(item) < max_item_bytes(limits.max_message_bytes) - 1200:
                width += 1
                unroll = trajectory(rows=MAX_EPISODES + 10, envs=1, width=width)
                item = encode_trajectory(replace(unroll, episodes=(Episode(-1e300, 1 << 62),) * MAX_EPISODES))
            await append.send(append_of(0, item))
            ack = await append.receive()
            assert ack.outcome is Outcome.STORED, ack.reason
            await sample.request(1)
            got = await sample.receive()
            assert got.items[0].payloads == (item,)
            assert len(got.episodes) == MAX_EPISODES
            await client.close()

    run(test)


def test_a_drain_hands_over_what_is_stored_and_then_ends_the_streams(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            client = server.client()
            append = await client.open_append(LIFE, "train")
            sample = await client.open_sample("train")
            for sequence in range(3):
                await append.send(append_of(sequence, PAYLOAD))
                await append.receive()
            await sample.request(1)
            await sample.receive()
            draining = asyncio.ensure_future(leave(server.shard, server.servicer, 30.0))
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
            draining = asyncio.ensure_future(leave(server.shard, server.servicer, 3600.0))
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
            assert await leave(server.shard, server.servicer, 0.1) == 1

    run(test)


def test_a_drain_of_a_table_with_files_hands_out_nothing_that_its_last_state_still_has(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        tables: dict[str, AnyTable] = {"train": QueueTable(durability="wal"), "memory": QueueTable()}
        async with served(tmp_path, tables=tables) as server:
            await assert_serves(server)
            assert (
                await server.shard.append(LIFE, "memory", append_of(0, PAYLOAD))
            ).outcome is Outcome.STORED
            client = server.client()
            kept, handed_over = await client.open_sample("train"), await client.open_sample("memory")
            draining = asyncio.ensure_future(leave(server.shard, server.servicer, 30.0))
            await asyncio.sleep(0)
            await kept.request(1)
            with pytest.raises(UnavailableError, match="draining"):
                await kept.receive()
            assert not draining.done()
            await handed_over.request(1)
            assert len((await handed_over.receive()).items) == 1
            assert await draining == 0
            assert server.stats().num_items == 1
            await client.close()

    run(test)


def test_calls_that_ask_for_what_is_not_there(tmp_path: Path) -> None:
    async def test() -> None:
        tables: dict[str, AnyTable] = {
            "train": QueueTable(),
            "sequences": SequenceTable(alpha=1.0, max_items=10),
        }
        async with served(tmp_path, tables=tables) as server:
            channel = open_channel(server.address, OPEN, LIMITS, RPC)
            stub = pb_grpc.ReplayServiceStub(channel)
            request = pb.UpdatePrioritiesRequest
            for update, code, text in (
                (request(table="nope", keys=[1], priorities=[1.0]), "NOT_FOUND", "train, sequences"),
                (request(table="train", keys=[1], priorities=[1.0]), "FAILED_PRECONDITION", "no priorities"),
                (request(table="sequences", keys=[1]), "INVALID_ARGUMENT", "1 keys with 0 priorities"),
                (request(table="sequences", keys=[1], priorities=[-1.0]), "INVALID_ARGUMENT", "-1.0"),
                (request(table="sequences", keys=[1], priorities=[float("inf")]), "INVALID_ARGUMENT", "inf"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.UpdatePriorities(update)
                assert (caught.value.code().name, text in str(caught.value.details())) == (code, True)
            done = await stub.UpdatePriorities(request(table="sequences", keys=[1], priorities=[1.0]))
            assert (done.num_updated, done.num_gone) == (0, 1)
            status, details = await ending(stub.Sample(), pb.SampleRequest(table="nope", num_items=1))
            assert (status, "no replay table" in details) == (grpc.StatusCode.NOT_FOUND, True)
            await channel.close()

    run(test)


def test_a_shard_that_still_reads_its_files_is_unavailable(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as server:
            client = server.client()
            server.shard._unavailable = OPENING
            with pytest.raises(UnavailableError, match="reading its files"):
                await client.open_append(LIFE, "train")
            sample = await client.open_sample("train")
            await sample.request(1)
            with pytest.raises(UnavailableError, match="reading its files"):
                await sample.receive()
            with pytest.raises(UnavailableError, match="reading its files"):
                await client.update_priorities("train", KEYS, np.ones(1))
            with pytest.raises(UnavailableError, match="reading its files"):
                await client.stats()
            await client.close()

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
    await append.send(append_of(0, PAYLOAD))
    assert (await append.receive()).outcome is Outcome.STORED
    await client.close()
