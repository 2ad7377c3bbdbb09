"""Replay over gRPC: a `ReplayShardClient` for one shard.

Used by `ReplayWriter` (actors) and `ReplaySampler` (the learner), on their event loop. One message each way
per item: kept lean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import grpc

from shoal.clients.replay import (
    Ack,
    AppendStream,
    Outcome,
    PrioritiesUpdated,
    Sampled,
    SampleStream,
    TableStats,
)
from shoal.config.tree import LimitsSection, RpcSection, SecuritySection
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.records import PROTOCOL_VERSION, Item, Life
from shoal.rpc.addresses import Address
from shoal.rpc.channel import open_channel
from shoal.rpc.status import from_rpc_error
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc

# A call that is answered at once must not hang on a shard that is stuck.
UNARY_TIMEOUT_S = 10.0

# Header of an append stream whose hello was accepted.
ACCEPTED_KEY = "shoal-accepted"

_MAX_TIMEOUT_MS = (1 << 32) - 1
_OUTCOMES = {pb.AppendResponse.Outcome.Value(f"OUTCOME_{outcome.name}"): outcome for outcome in Outcome}


class GrpcReplayClient:
    """One replay shard."""

    def __init__(
        self, address: Address, security: SecuritySection, limits: LimitsSection, rpc: RpcSection
    ) -> None:
        self._channel = open_channel(address, security, limits, rpc)
        self._stub = pb_grpc.ReplayServiceStub(self._channel)

    async def open_append(self, life: Life, table: str) -> AppendStream:
        hello = pb.AppendHello(
            protocol_version=PROTOCOL_VERSION, actor_id=life.actor_id, run_id=life.run_id, table=table
        )
        stream = _GrpcAppendStream(self._stub.Append())
        try:
            await stream.start(pb.AppendRequest(hello=hello))
        except BaseException:
            await stream.close()
            raise
        return stream

    async def open_sample(self, table: str) -> SampleStream:
        return _GrpcSampleStream(self._stub.Sample(), table)

    async def update_priorities(
        self, table: str, keys: Sequence[int], priorities: Sequence[float]
    ) -> PrioritiesUpdated:
        request = pb.UpdatePrioritiesRequest(table=table, keys=keys, priorities=priorities)
        done = await _answer(self._stub.UpdatePriorities(request, timeout=UNARY_TIMEOUT_S))
        return PrioritiesUpdated(done.num_updated, done.num_gone)

    async def stats(self) -> tuple[TableStats, ...]:
        answer = await _answer(self._stub.Stats(pb.StatsRequest(), timeout=UNARY_TIMEOUT_S))
        return tuple(_stats_from_proto(stats) for stats in answer.tables)

    async def close(self) -> None:
        await self._channel.close()


class _GrpcStream:
    """A bidirectional call whose every ending is a ShoalError."""

    def __init__(self, call: Any) -> None:
        self._call = call
        # Not `call.read()`: that forgets the answers that have arrived once a write has failed.
        self._responses = aiter(call)

    async def close(self) -> None:
        # A call that nobody cancels lives as long as its channel.
        self._call.cancel()

    async def _write(self, request: Any) -> None:
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except asyncio.InvalidStateError:
            raise await self._ending() from None
        except asyncio.CancelledError:
            raise _cancellation() from None

    async def _read(self) -> Any:
        try:
            return await anext(self._responses)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except StopAsyncIteration:
            raise await self._ending() from None
        except asyncio.CancelledError:
            raise _cancellation() from None

    async def _ending(self) -> ShoalError:
        """Why a finished call is finished."""
        call = self._call
        code, details = await call.code(), await call.details()
        if code is grpc.StatusCode.OK:
            return UnavailableError("the replay shard ended the stream: open a new one")
        initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
        return from_rpc_error(grpc.aio.AioRpcError(code, initial, trailing, details))


class _GrpcAppendStream(_GrpcStream):
    async def start(self, hello: pb.AppendRequest) -> None:
        await self._write(hello)
        # The shard sends this header once it has accepted the hello; a refusal ends the call without it.
        try:
            headers = await self._call.initial_metadata()
        except asyncio.CancelledError:
            raise _cancellation() from None
        if ACCEPTED_KEY not in headers:
            raise await self._ending()

    async def send(self, sequence: int, payload: bytes, timeout_s: float = 0.0) -> None:
        item = pb.AppendItem(sequence=sequence, timeout_ms=_milliseconds(timeout_s), trajectory=payload)
        await self._write(pb.AppendRequest(item=item))

    async def receive(self) -> Ack:
        response = await self._read()
        outcome = _OUTCOMES.get(response.outcome)
        if outcome is None:
            raise InvalidArgumentError(
                f"the replay shard answered with an unknown outcome: {response.outcome}"
            )
        return Ack(response.sequence, outcome, response.reason)


class _GrpcSampleStream(_GrpcStream):
    def __init__(self, call: Any, table: str) -> None:
        super().__init__(call)
        self._table = table

    async def request(self, num_items: int, timeout_s: float = 0.0) -> None:
        await self._write(
            pb.SampleRequest(table=self._table, num_items=num_items, timeout_ms=_milliseconds(timeout_s))
        )

    async def receive(self) -> Sampled:
        response = await self._read()
        items = tuple(
            Item(item.key, Life(item.actor_id, item.run_id), item.sequence, item.trajectory)
            for item in response.items
        )
        return Sampled(items, response.num_items, response.num_bytes, response.priority_mass)


def _cancellation() -> BaseException:
    """gRPC raises CancelledError when the caller was cancelled, and when it was the call."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return UnavailableError("the stream was closed here: open a new one")


async def _answer(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


def _milliseconds(timeout_s: float) -> int:
    """0 stays 0, the table's default; anything else is at least a millisecond."""
    return min(max(round(timeout_s * 1000), 1), _MAX_TIMEOUT_MS) if timeout_s > 0 else 0


def _stats_from_proto(message: pb.TableStats) -> TableStats:
    """The record and the message have the same fields."""
    return TableStats(**{field.name: getattr(message, field.name) for field in fields(TableStats)})
