"""The ReplayService RPCs: protocol buffers on one side, the `ReplayBackend` on the other.

A few tasks per open stream, all on the event loop: one reads ahead, one more stores what an append stream
brings, the handler itself answers in order. Nothing is started per message, and what is done per item is kept
lean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import grpc
import numpy as np
from prometheus_client import Gauge

from services.replay.metrics import ReplayMetrics
from services.replay.read_ahead import ReadAhead
from services.replay.tables import DRAINING, MAX_PAYLOADS
from shoal.clients.replay_grpc import ACCEPTED_KEY
from shoal.clients.replay_shard import Ack, Append, Outcome, PendingAck, ReplayBackend, Sampled
from shoal.errors import InvalidArgumentError, LimitError, UnavailableError
from shoal.layout import MAX_COLUMNS
from shoal.records import ArraySpec, Life
from shoal.rpc.server import RpcServer
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc
from shoal.wire import array_spec_from_proto, check_protocol_version, episode_to_proto, write_columns
from shoal.wire.fields import count_fields, fields

# Appends of one stream that wait for their answer here; beyond that they wait at the sender.
MAX_PENDING_APPENDS = 64
MAX_PENDING_BYTES = 4 << 20
MAX_PENDING_SAMPLES = 1024

# What has more fields is refused before it is parsed; too many trajectories are then refused as such.
MAX_APPEND_FIELDS = 4 * MAX_PAYLOADS
# Before it is parsed: names and shapes of the declared columns, and little else.
MAX_HELLO_BYTES = 1 << 20
# Of one call: thousands of batches.
MAX_UPDATES = 1 << 20
MAX_UPDATE_BYTES = 24 << 20

SERVICE = "shoal.v1.ReplayService"
_HELLO = pb.AppendRequest.HELLO_FIELD_NUMBER
_ITEMS = pb.AppendRequest.ITEMS_FIELD_NUMBER

_OUTCOMES = {outcome: pb.AppendResponse.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in Outcome}


class ReplayServicer(pb_grpc.ReplayServiceServicer):
    """Translates; decides nothing."""

    def __init__(self, backend: ReplayBackend, metrics: ReplayMetrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._append_readers: set[ReadAhead[Append]] = set()
        self._sample_readers: set[ReadAhead[pb.SampleRequest]] = set()

    def add_to(self, server: RpcServer) -> None:
        server.add(_register, self, SERVICE)

    async def Append(self, _requests: Any, context: Any) -> None:
        hello = await context.read()
        if hello is grpc.aio.EOF:
            return
        life, table, declared = _hello_from_proto(hello)
        begin_append = partial(self._backend.begin_append, life, table, declared=declared)
        self._backend.check_append(life, table, declared)
        # Tells the client that its hello was accepted, before there is anything to answer.
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))

        async def read() -> Append | None:
            request = await context.read()
            return None if request is grpc.aio.EOF else _append_from_proto(request)

        reader = ReadAhead(read, lambda items: items.num_bytes, MAX_PENDING_APPENDS, MAX_PENDING_BYTES)
        with _tracked(reader, self._append_readers, self._metrics.append_streams):
            pending: asyncio.Queue[PendingAck | Exception | None] = asyncio.Queue(MAX_PENDING_APPENDS)
            storing = asyncio.create_task(_store(reader, begin_append, pending))
            try:
                while (answer := await pending.get()) is not None:
                    if isinstance(answer, Exception):
                        raise answer
                    await context.write(_ack_to_proto(await answer.ack()))
            finally:
                storing.cancel()

    async def Sample(self, _requests: Any, context: Any) -> None:
        async def read() -> pb.SampleRequest | None:
            request = await context.read()
            return None if request is grpc.aio.EOF else request

        session = self._backend.open_sample()
        reader = ReadAhead(read, lambda _: 0, MAX_PENDING_SAMPLES, 1)
        with _tracked(reader, self._sample_readers, self._metrics.sample_streams):
            while (arrived := await reader.next()) is not None:
                request, waited_s = arrived
                timeout_s = request.timeout_ms / 1000
                sampled = await session.sample(request.table, request.num_items, timeout_s, waited_s)
                await context.write(_sampled_to_proto(sampled))

    async def UpdatePriorities(
        self, request: pb.UpdatePrioritiesRequest, context: Any
    ) -> pb.UpdatePrioritiesResponse:
        if max(len(request.keys), len(request.priorities)) > MAX_UPDATES:
            raise LimitError(f"update of {len(request.keys)} priorities: at most {MAX_UPDATES} are allowed")
        keys, priorities = np.array(request.keys, np.uint64), np.array(request.priorities, np.float64)
        done = self._backend.update_priorities(request.table, keys, priorities)
        return pb.UpdatePrioritiesResponse(num_updated=done.num_updated, num_gone=done.num_gone)

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        return pb.StatsResponse(tables=[pb.TableStats(**asdict(stats)) for stats in self._backend.stats()])

    def end_appends(self) -> None:
        """End every append stream as unavailable; what it has not answered yet is the client's to resend."""
        for reader in self._append_readers:
            reader.fail(UnavailableError(DRAINING))

    def end_samples(self) -> None:
        """End every sample stream as unavailable, after the answer that it may be writing."""
        for reader in self._sample_readers:
            reader.fail(UnavailableError(DRAINING))

    @property
    def num_sample_streams(self) -> int:
        return len(self._sample_readers)


def _register(servicer: ReplayServicer, server: grpc.aio.Server) -> None:
    """As the generated code does it, but with parsers that count first."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Append": grpc.stream_stream_rpc_method_handler(
            servicer.Append, _parse_append, pb.AppendResponse.SerializeToString
        ),
        "Sample": grpc.stream_stream_rpc_method_handler(
            servicer.Sample, pb.SampleRequest.FromString, pb.SampleResponse.SerializeToString
        ),
        "UpdatePriorities": grpc.unary_unary_rpc_method_handler(
            servicer.UpdatePriorities, _parse_update, pb.UpdatePrioritiesResponse.SerializeToString
        ),
        "Stats": grpc.unary_unary_rpc_method_handler(
            servicer.Stats, pb.StatsRequest.FromString, pb.StatsResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _parse_append(data: bytes) -> pb.AppendRequest:
    """Counted first: a message of a few megabytes may name millions of columns or trajectories."""
    # A field has two bytes or more.
    if len(data) > 2 * MAX_APPEND_FIELDS:
        num_fields = hello_bytes = 0
        # A message may come in several fields, which are merged.
        for field in fields(data):
            num_fields += 1
            if field.number == _HELLO:
                hello_bytes += field.end - field.begin
            elif field.number == _ITEMS:
                num_fields += count_fields(fields(data, field), MAX_APPEND_FIELDS)
            if hello_bytes > MAX_HELLO_BYTES:
                raise LimitError(f"hello of {len(data)} bytes: at most {MAX_HELLO_BYTES} are allowed")
            if num_fields > MAX_APPEND_FIELDS:
                raise LimitError(f"append of more than {MAX_PAYLOADS} trajectories: send fewer at once")
    return pb.AppendRequest.FromString(data)


def _parse_update(data: bytes) -> pb.UpdatePrioritiesRequest:
    if len(data) > MAX_UPDATE_BYTES:
        raise LimitError(f"update of {len(data)} bytes: at most {MAX_UPDATES} priorities are allowed")
    return pb.UpdatePrioritiesRequest.FromString(data)


async def _store(
    reader: ReadAhead[Append],
    begin_append: Callable[[Append, float], Awaitable[PendingAck]],
    pending: asyncio.Queue[PendingAck | Exception | None],
) -> None:
    """Appends of one stream, one after another; the next is stored while the disk is busy with the last.

    What ends the stream comes after the answers that are due before it. None is the regular end.
    """
    try:
        while (arrived := await reader.next()) is not None:
            await pending.put(await begin_append(*arrived))
    except Exception as error:
        await pending.put(error)
    else:
        await pending.put(None)


@contextmanager
def _tracked(reader: ReadAhead[Any], open_readers: set[Any], streams: Gauge) -> Iterator[None]:
    open_readers.add(reader)
    streams.inc()
    try:
        with reader:
            yield
    finally:
        streams.dec()
        open_readers.discard(reader)


def _hello_from_proto(request: pb.AppendRequest) -> tuple[Life, str, tuple[ArraySpec, ...]]:
    if not request.HasField("hello"):
        raise InvalidArgumentError("expected a hello: it comes first on every append stream")
    hello = request.hello
    check_protocol_version(hello.protocol_version)
    if len(hello.declared) > MAX_COLUMNS:
        raise InvalidArgumentError(
            f"hello declares {len(hello.declared)} columns: at most {MAX_COLUMNS} are allowed"
        )
    declared = tuple(array_spec_from_proto(spec) for spec in hello.declared)
    return Life(hello.actor_id, hello.run_id), hello.table, declared


def _append_from_proto(request: pb.AppendRequest) -> Append:
    if not request.HasField("items"):
        raise InvalidArgumentError("expected items: `hello` comes once, at the start of a stream")
    items = request.items
    priorities = np.array(items.priorities, np.float32) if items.priorities else None
    return Append(items.sequence, tuple(items.trajectories), priorities, items.timeout_ms / 1000)


def _ack_to_proto(ack: Ack) -> pb.AppendResponse:
    return pb.AppendResponse(sequence=ack.sequence, outcome=_OUTCOMES[ack.outcome], reason=ack.reason)  # type: ignore[arg-type]


def _sampled_to_proto(sampled: Sampled) -> pb.SampleResponse:
    response = pb.SampleResponse(
        num_items=sampled.num_items,
        num_bytes=sampled.num_bytes,
        priority_mass=sampled.priority_mass,
        steps_inserted=sampled.steps_inserted,
    )
    for episode in sampled.episodes:
        episode_to_proto(episode, response.episodes.add())
    # In place: a message that is given to another one is copied, payloads and all.
    add = response.items.add
    for item in sampled.items:
        life = item.life
        add(
            key=item.key,
            actor_id=life.actor_id,
            run_id=life.run_id,
            sequence=item.sequence,
            trajectories=item.payloads,
            mass=item.mass,
        )
    transitions = sampled.transitions
    if transitions is not None:
        message = response.transitions
        message.SetInParent()
        message.keys.extend(transitions.keys.tolist())
        message.masses.extend(transitions.masses.tolist())
        write_columns(transitions.columns, message.columns)
    return response
