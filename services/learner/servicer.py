"""WeightsService over gRPC: sends what the publisher of a policy has, in chunks. Event loop only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import grpc

from services.learner.metrics import LearnerMetrics
from shoal.clients.weights import WeightsBackend
from shoal.errors import FailedPreconditionError
from shoal.records import WeightsSnapshot
from shoal.rpc.server import RpcServer
from shoal.v1 import weights_service_pb2 as pb
from shoal.v1 import weights_service_pb2_grpc as pb_grpc
from shoal.wire import check_protocol_version, spec_from_proto

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20


class WeightsServicer(pb_grpc.WeightsServiceServicer):
    """One coroutine per subscriber."""

    def __init__(self, backends: Mapping[str, WeightsBackend], metrics: LearnerMetrics) -> None:
        """`backends` by the name of their policy."""
        self._backends = dict(backends)
        self._subscribers = {name: metrics.of(name).subscribers for name in backends}

    def add_to(self, server: RpcServer) -> None:
        server.add(pb_grpc.add_WeightsServiceServicer_to_server, self, "shoal.v1.WeightsService")

    async def Subscribe(
        self, request: pb.SubscribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        check_protocol_version(request.protocol_version)
        name, version = request.policy_name, request.current_version
        backend = self._backend(name)
        backend.accept(spec_from_proto(request.spec), request.policy, version)
        log.info("%s subscribes to %s, has version %d", request.subscriber_id, name, version)
        self._subscribers[name].inc()
        try:
            while True:
                snapshot = await backend.newer_than(version)
                await _send(snapshot, context)
                version = snapshot.version
        finally:
            self._subscribers[name].dec()
            log.info("%s has left %s, was sent version %d", request.subscriber_id, name, version)

    def _backend(self, name: str) -> WeightsBackend:
        try:
            return self._backends[name]
        except KeyError:
            known = ", ".join(self._backends)
            raise FailedPreconditionError(
                f"this run has no policy {name!r}: there are {known}; use the same env.policies everywhere"
            ) from None


async def _send(snapshot: WeightsSnapshot, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    data = memoryview(snapshot.data)
    for offset in range(0, len(data), CHUNK_BYTES):
        chunk = pb.SubscribeResponse(
            version=snapshot.version,
            total_bytes=len(data),
            sha256=snapshot.sha256,
            untrained=snapshot.untrained,
            offset=offset,
            data=bytes(data[offset : offset + CHUNK_BYTES]),
        )
        await context.write(chunk)
