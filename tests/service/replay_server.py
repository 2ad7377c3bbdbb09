"""Running replay shards for tests: on the test's own event loop, or as the real program in a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.replay.dedup import Dedup
from services.replay.metrics import ReplayMetrics
from services.replay.servicer import ReplayServicer
from services.replay.shard import Shard
from shoal.clients.replay import ReplayClient
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import Append, TableStats
from shoal.clients.replay_stats import ReplayStats
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.tables import AnyTable, QueueTable
from shoal.config.tree import ReplaySection
from shoal.errors import UnavailableError
from shoal.rpc.addresses import Address
from shoal.rpc.server import RpcServer

ROOT = Path(__file__).parents[2]
LIMITS = LimitsSection()
# Reconnects and pings as fast as allowed.
# A process that is not scheduled for seconds is not gone.
RPC = RpcSection(max_backoff_s=0.2, keepalive_timeout_s=20.0)
OPEN = SecuritySection()
PATIENCE_S = 60.0


def stats_of_all(client: ReplayClient) -> ReplayStats:
    """A shard that is slow to answer counts as away; waits until none is."""
    deadline = time.monotonic() + PATIENCE_S
    while (stats := client.stats()).away:
        assert time.monotonic() < deadline, stats.away
    return stats


def append_of(sequence: int, *payloads: bytes, timeout_s: float = 0.0) -> Append:
    return Append(sequence, payloads, timeout_s=timeout_s)


class Served:
    """A shard behind a real gRPC server on this event loop."""

    def __init__(self, shard: Shard, servicer: ReplayServicer, server: RpcServer) -> None:
        self.shard = shard
        self.servicer = servicer
        self.server = server

    @property
    def address(self) -> Address:
        return Address(self.server.address)

    def client(self, security: SecuritySection = OPEN, limits: LimitsSection = LIMITS) -> GrpcReplayClient:
        return GrpcReplayClient(self.address, security, limits, RPC)

    def stats(self) -> TableStats:
        return self.shard.stats()[0]


@asynccontextmanager
async def opened(
    directory: Path,
    tables: Mapping[str, AnyTable],
    *,
    limits: LimitsSection = LIMITS,
    make_dedup: Callable[[int], Dedup] = Dedup,
) -> AsyncIterator[Shard]:
    """A shard that keeps its files, if it has any, in the directory."""
    shard = Shard(ReplaySection(tables=dict(tables)), limits, directory, make_dedup=make_dedup)
    await shard.open()
    try:
        yield shard
    finally:
        await shard.close()


@asynccontextmanager
async def served(
    directory: Path,
    name: str = "shard",
    *,
    table: AnyTable | None = None,
    tables: Mapping[str, AnyTable] | None = None,
    limits: LimitsSection = LIMITS,
    security: SecuritySection = OPEN,
    make_dedup: Callable[[int], Dedup] = Dedup,
) -> AsyncIterator[Served]:
    tables = tables or {"train": table or QueueTable()}
    async with opened(directory / f"{name}.files", tables, limits=limits, make_dedup=make_dedup) as shard:
        metrics = ReplayMetrics(CollectorRegistry())
        metrics.watch(shard.tables)
        servicer = ReplayServicer(shard, metrics)
        server = RpcServer(f"unix:{directory}/{name}", "", security, limits, RPC)
        servicer.add_to(server)
        await server.start()
        try:
            yield Served(shard, servicer, server)
        finally:
            await server.drain(0.0)


class ShardProcess:
    """`python -m services.replay` on a unix socket that survives its restarts."""

    def __init__(self, directory: Path, name: str, *settings: str) -> None:
        self.socket = directory / f"{name}.sock"
        self.announce = directory / f"{name}.json"
        self.files = directory / f"{name}.files"
        self._log = directory / f"{name}.log"
        self._settings = (
            f"replay.id={name}",
            f"replay.listen.grpc=unix:{self.socket}",
            f"replay.listen.health=unix:{directory}/{name}.health",
            f"replay.listen.announce={self.announce}",
            f"replay.dir={self.files}",
            *settings,
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address(f"unix:{self.socket}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def client(self) -> GrpcReplayClient:
        return GrpcReplayClient(self.address, OPEN, LIMITS, RPC)

    async def start(self) -> None:
        """Returns once it serves."""
        await self.listen()
        await until(self._serves)

    async def listen(self) -> None:
        """Returns once it listens; it may still read its files."""
        self.announce.unlink(missing_ok=True)
        self._process = self._spawn()
        await until(self._is_announced)

    async def refuses_to_start(self) -> str:
        """Its one line of reason."""
        self._process = self._spawn()
        code = await asyncio.to_thread(self._process.wait, PATIENCE_S)
        errors = [line for line in self.log.splitlines() if line.startswith("error: ")]
        assert (code, len(errors)) == (2, 1), self.log
        assert "Traceback" not in self.log
        return errors[0]

    def kill(self) -> None:
        """`kill -9`, and wait for it to be over."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, PATIENCE_S)

    def announced(self, key: str) -> str:
        return str(json.loads(self.announce.read_text())[key])

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "services.replay"]
        for setting in self._settings:
            command += ["--set", setting]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    async def _is_announced(self) -> bool:
        self._assert_runs()
        return self.announce.exists()

    async def _serves(self) -> bool:
        self._assert_runs()
        client = GrpcReplayClient(Address(self.announced("grpc")), OPEN, LIMITS, RPC)
        try:
            await client.stats()
        except UnavailableError:
            return False
        finally:
            await client.close()
        return True

    def _assert_runs(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"exited with {self._process.returncode}: {self.log}")


@asynccontextmanager
async def shard_processes(*shards: ShardProcess) -> AsyncIterator[None]:
    """All of them started; all of them killed at the end."""
    try:
        await asyncio.gather(*(shard.start() for shard in shards))
        yield
    finally:
        for shard in shards:
            shard.kill()


async def until(condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    """Ask again and again until it holds."""
    async with asyncio.timeout(patience_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
