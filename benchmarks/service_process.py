"""One service as a process of its own, on unix sockets: for benchmarks that need less than a whole run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shoal.rpc.addresses import Address

START_TIMEOUT_S = 120.0
POLL_S = 0.02


@dataclass
class ServiceProcess:
    """`python -m <module>` with these settings; `name` is the service's section and that of its files."""

    name: str
    directory: Path
    settings: Mapping[str, object]
    module: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return f"unix:{self.directory}/{self.name}.sock"

    @property
    def address(self) -> Address:
        return Address(self.target)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def metrics_address(self) -> str:
        return str(json.loads(self._announce.read_text())["metrics"])

    @property
    def _announce(self) -> Path:
        return self.directory / f"{self.name}.json"

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        settings = {
            **self.settings,
            f"{self.name}.listen.grpc": self.target,
            f"{self.name}.listen.health": f"unix:{self.directory}/{self.name}.health",
            f"{self.name}.listen.announce": str(self._announce),
        }
        command = [sys.executable, "-m", self.module or f"services.{self.name}"]
        for key, value in settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        # Without the user's own settings of shoal.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL__")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**environment, **self.environment}
            )

    def wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._announce.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(services: Sequence[ServiceProcess]) -> Iterator[None]:
    """All up; killed at the end, the last one first."""
    with ExitStack() as stack:
        for service in services:
            service.start()
            stack.callback(service.stop)
        for service in services:
            service.wait_until_up()
        yield
