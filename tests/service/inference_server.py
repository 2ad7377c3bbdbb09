"""Running inference for tests: on the test's own event loop, or as the real program in a process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from prometheus_client import CollectorRegistry

from services.inference.engine import Engine
from services.inference.metrics import InferenceMetrics
from services.inference.servicer import InferenceServicer
from services.inference.subscription import Subscription
from services.learner.metrics import LearnerMetrics
from services.learner.servicer import WeightsServicer
from shoal.clients.inference_grpc import GrpcInferenceClient
from shoal.clients.weights import WeightsBackend, WeightsClient, policy_text
from shoal.clients.weights_local import InProcessWeightsClient
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.records import DEFAULT_POLICY
from shoal.rpc.addresses import Address
from shoal.rpc.backoff import Backoff
from shoal.rpc.server import RpcServer
from tests.unit.inference.tracer import POLICY

ROOT = Path(__file__).parents[2]
LIMITS = LimitsSection()
# A process that is not scheduled for seconds is not gone.
RPC = RpcSection(max_backoff_s=0.2, keepalive_timeout_s=20.0)
OPEN = SecuritySection()
PATIENCE_S = 60.0


@contextmanager
def socket_directory() -> Iterator[Path]:
    """A short path: those of unix sockets are limited to about a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        yield Path(directory)


@dataclass
class Served:
    """An engine behind a real gRPC server on this event loop."""

    engine: Engine
    servicer: InferenceServicer
    server: RpcServer
    registry: CollectorRegistry

    def client(self, security: SecuritySection = OPEN) -> GrpcInferenceClient:
        return GrpcInferenceClient(Address(self.server.address), security, LIMITS, RPC)

    def value(self, name: str) -> float:
        series = f"shoal_inference_{name}"
        found = self.registry.get_sample_value(series)
        return found or self.registry.get_sample_value(series, {"policy": "policy"}) or 0.0


@asynccontextmanager
async def served(
    directory: Path,
    learner: WeightsBackend,
    name: str = "replica-0",
    *,
    config: InferenceSection | None = None,
    policy: PolicySection = POLICY,
    security: SecuritySection = OPEN,
) -> AsyncIterator[Served]:
    """Follows `learner` over the in-process client, as `__main__` does over gRPC."""
    registry = CollectorRegistry()
    metrics = InferenceMetrics(registry)
    section = config or InferenceSection(id=name)
    engine = Engine(section, policy, torch.device("cpu"), metrics)
    servicer = InferenceServicer(engine, LIMITS, metrics)
    server = RpcServer(f"unix:{directory}/{name}", "", security, LIMITS, RPC)
    servicer.add_to(server)

    async def dial() -> WeightsClient:
        return InProcessWeightsClient(learner)

    subscription = Subscription(dial, section.id, policy_text(policy), engine, metrics, Backoff(max_s=0.1))
    await server.start()
    engine.start()
    following = asyncio.ensure_future(subscription.run())
    try:
        yield Served(engine, servicer, server, registry)
    finally:
        following.cancel()
        engine.drain()
        await servicer.drain()
        await server.drain(5.0)
        await engine.close()


@asynccontextmanager
async def weights_server(directory: Path, learner: WeightsBackend) -> AsyncIterator[str]:
    """The learner's own weights service over `learner`; yields its address."""
    server = RpcServer(f"unix:{directory}/learner", "", OPEN, LIMITS, RPC)
    WeightsServicer({DEFAULT_POLICY: learner}, LearnerMetrics(CollectorRegistry())).add_to(server)
    await server.start()
    try:
        yield server.address
    finally:
        await server.drain(0.0)


class InferenceProcess:
    """`python -m services.inference` on a unix socket that survives its restarts."""

    command: tuple[str, ...] = (sys.executable, "-m", "services.inference")

    def __init__(self, directory: Path, learner: str, name: str = "replica-0", *settings: str) -> None:
        self._announce = directory / f"{name}.json"
        self._socket = f"unix:{directory}/{name}"
        self._log = directory / f"{name}.log"
        self._settings = (
            f"inference.id={name}",
            f"inference.listen.grpc={self._socket}",
            f"inference.listen.health=unix:{directory}/{name}.health",
            f"inference.listen.announce={self._announce}",
            f"addresses.learner={learner}",
            "policy.hidden_sizes=[]",
            "policy.normalise_observations=false",
            "rpc.max_backoff_s=0.2",
            *settings,
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def client(self) -> GrpcInferenceClient:
        return GrpcInferenceClient(Address(self._socket), OPEN, LIMITS, RPC)

    def spawn(self) -> subprocess.Popen[bytes]:
        command = list(self.command)
        for setting in self._settings:
            command += ["--set", setting]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
            )
        return self.process

    async def start(self) -> None:
        """Returns once it listens."""
        self._announce.unlink(missing_ok=True)
        process = self.spawn()
        async with asyncio.timeout(PATIENCE_S):
            while not self._announce.exists():
                assert process.poll() is None, f"exited with {process.returncode}: {self.log}"
                await asyncio.sleep(0.02)
        assert json.loads(self._announce.read_text())["grpc"] == self._socket

    async def exit_code(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def kill(self) -> None:
        """`kill -9`, and wait for it to be over."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
