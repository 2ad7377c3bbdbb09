"""Weights over gRPC: a `WeightsClient` for one learner.

Used by inference, on its event loop. A version surfaces only when all its chunks have come, in order, and its
SHA-256 is right; a push that was torn is as if it had not been sent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import grpc

from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.errors import LimitError, UnavailableError
from shoal.records import DEFAULT_POLICY, PROTOCOL_VERSION, EnvSpec, WeightsSnapshot
from shoal.rpc.addresses import Address
from shoal.rpc.channel import open_channel
from shoal.rpc.status import from_rpc_error
from shoal.v1 import weights_service_pb2 as pb
from shoal.v1 import weights_service_pb2_grpc as pb_grpc
from shoal.wire import spec_to_proto


class GrpcWeightsClient:
    """One learner."""

    def __init__(
        self, address: Address, security: SecuritySection, limits: LimitsSection, rpc: RpcSection
    ) -> None:
        self._channel = open_channel(address, security, limits, rpc)
        self._stub = pb_grpc.WeightsServiceStub(self._channel)
        self._max_bytes = limits.max_tensor_bytes

    async def subscribe(
        self,
        subscriber_id: str,
        spec: EnvSpec,
        policy: str,
        current_version: int,
        policy_name: str = DEFAULT_POLICY,
    ) -> AsyncIterator[WeightsSnapshot]:
        request = pb.SubscribeRequest(
            protocol_version=PROTOCOL_VERSION,
            subscriber_id=subscriber_id,
            spec=spec_to_proto(spec),
            current_version=current_version,
            policy=policy,
            policy_name=policy_name,
        )
        call = self._stub.Subscribe(request)
        assembler = SnapshotAssembler(current_version, self._max_bytes)
        try:
            async for chunk in call:
                snapshot = assembler.add(chunk)
                if snapshot is not None:
                    yield snapshot
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC also raises this when the channel was closed and nobody was cancelled.
            raise UnavailableError("this client was closed") from None
        finally:
            call.cancel()
        raise UnavailableError("the learner ended the subscription: subscribe again")

    async def close(self) -> None:
        await self._channel.close(None)


class SnapshotAssembler:
    """Puts the chunks of one version after another together. No I/O.

    Memory follows what has arrived, never what a message says will. A torn push is an UnavailableError: the
    caller subscribes again.
    """

    def __init__(self, current_version: int, max_bytes: int) -> None:
        self._version = current_version
        self._max_bytes = max_bytes
        self._head: tuple[int, int, bytes, bool] | None = None
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def add(self, chunk: pb.SubscribeResponse) -> WeightsSnapshot | None:
        """The snapshot that this chunk completes, if it does."""
        head = (chunk.version, chunk.total_bytes, chunk.sha256, chunk.untrained)
        if self._head is None:
            self._start(head)
        elif head != self._head:
            raise UnavailableError(
                f"torn weights: a chunk of version {chunk.version} after {self._num_bytes} of "
                f"{self._head[1]} bytes of version {self._head[0]}"
            )
        self._append(chunk)
        if self._num_bytes < chunk.total_bytes:
            return None
        data = b"".join(self._parts)
        if self._hash.digest() != chunk.sha256:
            raise UnavailableError(f"torn weights: version {chunk.version} does not have its SHA-256")
        self._head = None
        self._version = chunk.version
        return WeightsSnapshot(chunk.version, data, chunk.sha256, chunk.untrained)

    def _start(self, head: tuple[int, int, bytes, bool]) -> None:
        version, total_bytes, *_ = head
        if total_bytes > self._max_bytes:
            raise LimitError(
                f"weights of {total_bytes} bytes are above limits.max_tensor_bytes ({self._max_bytes}): "
                "raise the limit"
            )
        if version <= self._version:
            raise UnavailableError(f"the learner sent version {version} after {self._version}")
        self._head = head
        self._hash = hashlib.sha256()
        self._parts = []
        self._num_bytes = 0

    def _append(self, chunk: pb.SubscribeResponse) -> None:
        end = self._num_bytes + len(chunk.data)
        if chunk.offset != self._num_bytes or not chunk.data or end > chunk.total_bytes:
            raise UnavailableError(
                f"torn weights: {len(chunk.data)} bytes at {chunk.offset} of version {chunk.version}, where "
                f"{self._num_bytes} of {chunk.total_bytes} bytes have come so far"
            )
        self._parts.append(chunk.data)
        # Chunk by chunk: hashing all at the end would hold the event loop up for longer.
        self._hash.update(chunk.data)
        self._num_bytes = end
