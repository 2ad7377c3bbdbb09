"""Replay over gRPC: a `ReplayShardClient` for one shard.

Used by `ReplayWriter` (actors) and the samplers (the learner), on their event loop. One message each way
per append and per sample; what is done per item is kept lean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import grpc
import numpy as np

from shoal.clients.replay_shard import (
    MAX_EPISODES,
    Ack,
    Append,
    AppendStream,
    Outcome,
    PrioritiesUpdated,
    Sampled,
    SampleStream,
    TableStats,
)
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.records import PROTOCOL_VERSION, ArraySpec, Item, Life, Transitions
from shoal.rpc.addresses import Address
from shoal.rpc.channel import open_channel
from shoal.rpc.status import from_rpc_error, opened
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc
from shoal.wire import array_spec_to_proto, columns_from_proto, episode_from_proto

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
        self._max_tensor_bytes = limits.max_tensor_bytes

    async def open_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> AppendStream:
        hello = pb.AppendHello(
            protocol_version=PROTOCOL_VERSION,
            actor_id=life.actor_id,
            run_id=life.run_id,
            table=table,
            declared=[array_spec_to_proto(spec) for spec in declared],
        )
        return await opened(lambda: self._open_append(pb.AppendRequest(hello=hello)))

    async def _open_append(self, hello: pb.AppendRequest) -> AppendStream:
        stream = _GrpcAppendStream(self._stub.Append())
        try:
            await stream.start(hello)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def open_sample(self, table: str) -> SampleStream:
        return _GrpcSampleStream(self._stub.Sample(), table, self._max_tensor_bytes)

    async def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray
    ) -> PrioritiesUpdated:
        # Lists of plain numbers: protocol buffers take arrays, too, at several times the cost.
        request = pb.UpdatePrioritiesRequest(table=table, keys=keys.tolist(), priorities=priorities.tolist())
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

    async def send(self, append: Append) -> None:
        request = pb.AppendRequest()
        # In place: a message that is given to another one is copied.
        items = request.items
        items.sequence = append.sequence
        items.timeout_ms = _milliseconds(append.timeout_s)
        items.trajectories.extend(append.payloads)
        if append.priorities is not None:
            items.priorities.extend(append.priorities.tolist())
        await self._write(request)

    async def receive(self) -> Ack:
        response = await self._read()
        outcome = _OUTCOMES.get(response.outcome)
        if outcome is None:
            raise InvalidArgumentError(
                f"the replay shard answered with an unknown outcome: {response.outcome}"
            )
        return Ack(response.sequence, outcome, response.reason)


class _GrpcSampleStream(_GrpcStream):
    def __init__(self, call: Any, table: str, max_tensor_bytes: int) -> None:
        super().__init__(call)
        self._table = table
        self._max_tensor_bytes = max_tensor_bytes

    async def request(self, num_items: int, timeout_s: float = 0.0) -> None:
        await self._write(
            pb.SampleRequest(table=self._table, num_items=num_items, timeout_ms=_milliseconds(timeout_s))
        )

    async def receive(self) -> Sampled:
        response = await self._read()
        items = tuple(
            Item(
                item.key,
                _life(item.actor_id, item.run_id),
                item.sequence,
                tuple(item.trajectories),
                item.mass,
            )
            for item in response.items
        )
        transitions = None
        if response.HasField("transitions"):
            transitions = _transitions_from_proto(response.transitions, self._max_tensor_bytes)
        return Sampled(
            items,
            transitions,
            response.num_items,
            response.num_bytes,
            response.priority_mass,
            response.steps_inserted,
            tuple([episode_from_proto(episode) for episode in response.episodes[:MAX_EPISODES]]),
        )


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


@lru_cache(1024)
def _life(actor_id: str, run_id: str) -> Life:
    """Many items have the same one."""
    return Life(actor_id, run_id)


def _transitions_from_proto(message: pb.Transitions, max_tensor_bytes: int) -> Transitions:
    keys = np.array(message.keys, np.uint64)
    masses = np.array(message.masses, np.float64)
    columns = columns_from_proto(message.columns, max_tensor_bytes)
    rows = {name: len(array) if array.ndim else 0 for name, array in columns.items()}
    if len(masses) != len(keys) or any(number != len(keys) for number in rows.values()):
        raise InvalidArgumentError(
            f"the replay shard answered with {len(keys)} keys, {len(masses)} masses and columns of other "
            f"lengths: {rows}"
        )
    return Transitions(keys, masses, columns)
