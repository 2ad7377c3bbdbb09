"""A real Prometheus with the real rules, that scrapes real processes every second."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.rule_files import PROMETHEUS
from tests.tools import tool

# A loaded machine takes long to start eleven processes; this only ends a hang.
PATIENCE_S = 150.0


@dataclass(frozen=True)
class Target:
    """One process, with the labels that compose and Kubernetes give it."""

    address: str
    job: str
    run: str


class Prometheus:
    """Asked over its HTTP interface."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as response:
            return json.load(response)["data"]

    def values(self, expression: str) -> list[float]:
        """Of all series that the expression gives now."""
        found = self.ask("api/v1/query", query=expression)["result"]
        return [float(series["value"][1]) for series in found]

    def has_data(self, expression: str) -> bool:
        return any(not math.isnan(value) for value in self.values(expression))

    def metric_names(self) -> set[str]:
        return set(self.ask("api/v1/label/__name__/values"))

    def alerts(self) -> list[dict[str, Any]]:
        """Those that fire or are about to."""
        found: list[dict[str, Any]] = self.ask("api/v1/alerts")["alerts"]
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@contextmanager
def prometheus(targets: list[Target], directory: Path) -> Iterator[Prometheus]:
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(PROMETHEUS / "rules/*.yml")],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [target.address], "labels": {"run": target.run}}
                    for target in targets
                    if target.job == job
                ],
            }
            for job in sorted({target.job for target in targets})
        ],
    }
    file, log = directory / "prometheus.yml", directory / "prometheus.log"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{_free_port()}"
    command = [tool("prometheus"), f"--config.file={file}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={directory / 'data'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        server = Prometheus(address)
        until(lambda: process.poll() is not None or server.is_ready(), lambda: "Prometheus is not ready")
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"after {PATIENCE_S:.0f} s: {what()}"
        time.sleep(0.5)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
