"""Real replay shards as processes, for the replay benchmark: start, look at, kill, start again."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from shoal.cli.scrape import fetch, parse
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import TableStats
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.errors import UnavailableError
from shoal.rpc.addresses import Address

LIMITS = LimitsSection()
RPC = RpcSection()
OPEN = SecuritySection()
TABLE = "train"
START_TIMEOUT_S = 300.0
POLL_S = 0.01


class Shard:
    """`python -m services.replay` with one table, on a unix socket."""

    def __init__(self, directory: Path, name: str, table: dict[str, object]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.files = directory / name
        self.address = Address(f"unix:{directory}/{name}.sock")
        self._announce = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self._settings = {
            "replay.id": name,
            "replay.dir": str(self.files),
            "replay.tables": {TABLE: table},
            "replay.listen.grpc": self.address.target,
            "replay.listen.health": f"unix:{directory}/{name}.health",
            "replay.listen.announce": str(self._announce),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def client(self) -> GrpcReplayClient:
        return GrpcReplayClient(self.address, OPEN, LIMITS, RPC)

    @property
    def rss_bytes(self) -> int:
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    async def start(self) -> float:
        """Seconds until it serves, recovery included."""
        self._announce.unlink(missing_ok=True)
        began = time.perf_counter()
        self._process = self._spawn()
        while not await self._serves():
            if self._process.poll() is not None or time.perf_counter() - began > START_TIMEOUT_S:
                self.kill()
                raise RuntimeError(f"the shard did not start:\n{self._log.read_text()[-2000:]}")
            await asyncio.sleep(POLL_S)
        return time.perf_counter() - began

    async def stats(self) -> TableStats:
        client = self.client()
        try:
            (table,) = await client.stats()
            return table
        finally:
            await client.close()

    async def metric(self, name: str) -> float:
        """The only series of a metric, from the shard's /metrics."""
        metrics = parse(await fetch(json.loads(self._announce.read_text())["metrics"]))
        (value,) = metrics[name].values()
        return value

    async def _serves(self) -> bool:
        """It listens before it has read its files, and refuses until it has."""
        if not self._announce.exists():
            return False
        try:
            await self.stats()
        except UnavailableError:
            return False
        return True

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "services.replay"]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=_environment())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _environment() -> dict[str, str]:
    """Without the user's own settings of shoal."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL__")}


@asynccontextmanager
async def shards(
    directory: Path, table: dict[str, object], number: int = 1
) -> AsyncIterator[Sequence[Shard]]:
    """`number` of them with the same table, below a new directory; killed at the end."""
    started = [Shard(directory, f"shard-{i}", table) for i in range(number)]
    try:
        await asyncio.gather(*(shard.start() for shard in started))
        yield started
    finally:
        for shard in started:
            shard.kill()
