"""The ReplayService RPCs: protocol buffers on one side, the `ReplayBackend` on the other.

Two tasks per open stream, both on the event loop: one reads ahead, the handler itself answers in order.
Nothing is started per message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import grpc
from prometheus_client import Gauge

from services.replay.metrics import ReplayMetrics
from services.replay.read_ahead import ReadAhead
from services.replay.tables import DRAINING
from shoal.clients.replay import Ack, Outcome, ReplayBackend, Sampled
from shoal.clients.replay_grpc import ACCEPTED_KEY
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.records import Life
from shoal.rpc.server import RpcServer
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc
from shoal.wire import check_protocol_version

# Appends of one stream that wait for their answer here; beyond that they wait at the sender.
MAX_PENDING_ITEMS = 64
MAX_PENDING_BYTES = 4 << 20
MAX_PENDING_SAMPLES = 1024

_OUTCOMES = {outcome: pb.AppendResponse.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class _Append:
    sequence: int
    timeout_s: float
    payload: bytes


class ReplayServicer(pb_grpc.ReplayServiceServicer):
    """Translates; decides nothing."""

    def __init__(self, backend: ReplayBackend, metrics: ReplayMetrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._append_readers: set[ReadAhead[_Append]] = set()
        self._sample_readers: set[ReadAhead[pb.SampleRequest]] = set()

    def add_to(self, server: RpcServer) -> None:
        server.add(pb_grpc.add_ReplayServiceServicer_to_server, self, "shoal.v1.ReplayService")

    async def Append(self, _requests: Any, context: Any) -> None:
        hello = await context.read()
        if hello is grpc.aio.EOF:
            return
        life, table = _hello_from_proto(hello)
        append = self._backend.append
        self._backend.check_append(life, table)
        # Tells the client that its hello was accepted, before there is anything to answer.
        await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))

        async def read() -> _Append | None:
            request = await context.read()
            return None if request is grpc.aio.EOF else _item_from_proto(request)

        reader = ReadAhead(read, lambda item: len(item.payload), MAX_PENDING_ITEMS, MAX_PENDING_BYTES)
        with _tracked(reader, self._append_readers, self._metrics.append_streams):
            while (arrived := await reader.next()) is not None:
                item, waited_s = arrived
                ack = await append(life, table, item.sequence, item.payload, item.timeout_s, waited_s)
                await context.write(_ack_to_proto(ack))

    async def Sample(self, _requests: Any, context: Any) -> None:
        async def read() -> pb.SampleRequest | None:
            request = await context.read()
            return None if request is grpc.aio.EOF else request

        reader = ReadAhead(read, lambda _: 0, MAX_PENDING_SAMPLES, 1)
        with _tracked(reader, self._sample_readers, self._metrics.sample_streams):
            while (arrived := await reader.next()) is not None:
                request, waited_s = arrived
                timeout_s = request.timeout_ms / 1000
                sampled = await self._backend.sample(request.table, request.num_items, timeout_s, waited_s)
                await context.write(_sampled_to_proto(sampled))

    async def UpdatePriorities(
        self, request: pb.UpdatePrioritiesRequest, context: Any
    ) -> pb.UpdatePrioritiesResponse:
        done = self._backend.update_priorities(request.table, tuple(request.keys), tuple(request.priorities))
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


def _hello_from_proto(request: pb.AppendRequest) -> tuple[Life, str]:
    if not request.HasField("hello"):
        raise InvalidArgumentError("expected a hello: it comes first on every append stream")
    hello = request.hello
    check_protocol_version(hello.protocol_version)
    return Life(hello.actor_id, hello.run_id), hello.table


def _item_from_proto(request: pb.AppendRequest) -> _Append:
    if not request.HasField("item"):
        raise InvalidArgumentError("expected an item: `hello` comes once, at the start of a stream")
    item = request.item
    return _Append(item.sequence, item.timeout_ms / 1000, item.trajectory)


def _ack_to_proto(ack: Ack) -> pb.AppendResponse:
    return pb.AppendResponse(sequence=ack.sequence, outcome=_OUTCOMES[ack.outcome], reason=ack.reason)  # type: ignore[arg-type]


def _sampled_to_proto(sampled: Sampled) -> pb.SampleResponse:
    items = [
        pb.Item(
            key=item.key,
            actor_id=item.life.actor_id,
            run_id=item.life.run_id,
            sequence=item.sequence,
            trajectory=item.payload,
        )
        for item in sampled.items
    ]
    return pb.SampleResponse(
        items=items,
        num_items=sampled.num_items,
        num_bytes=sampled.num_bytes,
        priority_mass=sampled.priority_mass,
    )
