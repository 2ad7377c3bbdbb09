"""WeightsService over gRPC: sends what the publisher has, in chunks. Event loop only."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from services.learner.metrics import LearnerMetrics
from shoal.clients.weights import WeightsBackend
from shoal.records import WeightsSnapshot
from shoal.rpc.server import RpcServer
from shoal.v1 import weights_service_pb2 as pb
from shoal.v1 import weights_service_pb2_grpc as pb_grpc
from shoal.wire import check_protocol_version, spec_from_proto

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20


class WeightsServicer(pb_grpc.WeightsServiceServicer):
    """One coroutine per subscriber."""

    def __init__(self, backend: WeightsBackend, metrics: LearnerMetrics) -> None:
        self._backend = backend
        self._metrics = metrics

    def add_to(self, server: RpcServer) -> None:
        server.add(pb_grpc.add_WeightsServiceServicer_to_server, self, "shoal.v1.WeightsService")

    async def Subscribe(
        self, request: pb.SubscribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        check_protocol_version(request.protocol_version)
        self._backend.accept(spec_from_proto(request.spec), request.policy, request.current_version)
        log.info("%s subscribes, has version %d", request.subscriber_id, request.current_version)
        version = request.current_version
        self._metrics.subscribers.inc()
        try:
            while True:
                snapshot = await self._backend.newer_than(version)
                await _send(snapshot, context)
                version = snapshot.version
        finally:
            self._metrics.subscribers.dec()
            log.info("%s has left, was sent version %d", request.subscriber_id, version)


async def _send(snapshot: WeightsSnapshot, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    data = memoryview(snapshot.data)
    for offset in range(0, len(data), CHUNK_BYTES):
        chunk = pb.SubscribeResponse(
            version=snapshot.version,
            total_bytes=len(data),
            sha256=snapshot.sha256,
            offset=offset,
            data=bytes(data[offset : offset + CHUNK_BYTES]),
        )
        await context.write(chunk)
