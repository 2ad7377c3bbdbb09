"""The four programs started by hand, as an operator without `shoal train` would start them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.cli.plan import ProcessSpec, child_environment, plan_processes
from shoal.config import Config, to_yaml

ROOT = Path(__file__).parents[2]
TOKEN = "secret-of-the-test"
PATIENCE_S = 110.0


class Programs:
    """Processes over unix sockets in one directory, each with a log of its own."""

    def __init__(self, config: Config, directory: Path) -> None:
        self.directory = directory
        self.specs: dict[str, ProcessSpec] = {spec.name: spec for spec in plan_processes(config, directory)}
        self._config_file = directory / "run.yaml"
        self._config_file.write_text(to_yaml(config))
        self._environment = child_environment(config, TOKEN, os.environ, directory)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, python: Path | None = None, cwd: Path = ROOT) -> None:
        """`name` is like `actor-0`; `python` is the interpreter of another virtual environment."""
        command = self.specs[name].command(self._config_file)
        if python is not None:
            command[0] = str(python)
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=cwd, env=self._environment, stdout=log, stderr=log
            )

    def announced(self, name: str) -> dict[str, Any]:
        """What the process says of itself once it listens."""
        path = self.specs[name].announce
        self.until(path.exists, f"announcement of {name}")
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits; a process that ended meanwhile fails the test with its log."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} exited: {self._log(name).read_text()}"
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s"
            time.sleep(0.05)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def kill(self, *names: str) -> None:
        """With `kill -9`: those, or all."""
        for name in names or tuple(self._processes):
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


@contextmanager
def programs(config: Config) -> Iterator[Programs]:
    # Short: the paths of unix sockets are.
    with tempfile.TemporaryDirectory(prefix="hand", dir="/tmp") as directory:
        running = Programs(config, Path(directory))
        try:
            yield running
        finally:
            running.kill()
