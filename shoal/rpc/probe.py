"""Asks a service for its health, as a probe does: `python -m shoal.rpc.probe 127.0.0.1:50050`.

For health checks of containers, which have no gRPC client of their own. Exit code 0 if it serves, 1 if not, 2
for an address that is none. One call, on no event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.errors import ConfigError
from shoal.rpc.addresses import parse_endpoint

TIMEOUT_S = 5.0


def probe(address: str, timeout_s: float = TIMEOUT_S) -> str:
    """What the service says of itself: `SERVING`, `NOT_SERVING`, or why it says nothing."""
    with grpc.insecure_channel(str(parse_endpoint(address))) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return f"no answer: {error.code().name}: {error.details()}"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m shoal.rpc.probe HOST:PORT", file=sys.stderr)
        return 2
    try:
        status = probe(argv[0])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(status)
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
