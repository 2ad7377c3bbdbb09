"""A learner's publisher behind a real server, as a program, for tests that kill it in the middle of a push.

    weights_server.py UNIX_PATH NUM_FLOATS

Publishes a new version whenever the last one was taken, for ever. All weights of a version are its number.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from services.learner.metrics import LearnerMetrics
from services.learner.publisher import WeightsPublisher
from services.learner.servicer import WeightsServicer
from services.learner.versions import VersionCounter
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.network import PolicySection
from shoal.records import DEFAULT_POLICY
from shoal.rpc.server import RpcServer


async def main(path: str, num_floats: str) -> None:
    versions = VersionCounter(Path(tempfile.mkdtemp()) / "v")
    publisher = WeightsPublisher(versions, PolicySection())
    server = RpcServer(f"unix:{path}", "", SecuritySection(), LimitsSection(), RpcSection())
    WeightsServicer({DEFAULT_POLICY: publisher}, LearnerMetrics(CollectorRegistry())).add_to(server)
    await server.start()
    print("ready", flush=True)
    while True:
        version = versions.next()
        publisher.publish(version, {"a": np.full(int(num_floats), version, np.float32)})
        await publisher.newer_than(version - 1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
