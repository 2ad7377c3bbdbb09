"""A compose project of the test's own, driven as by its users: with compose, Prometheus and the engine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from shoal.cli.docker.compose import find_command

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
SERVICES = ("actor", "inference", "replay-0", "replay-1", "learner", "prometheus")


class Project:
    """`up`, look, `down`; whatever is left is removed at the end."""

    def __init__(self, name: str, files: Sequence[str] = ()) -> None:
        self.name = name
        self.engine = docker.from_env()
        self.port = _free_port()
        self._files = [argument for file in ("docker-compose.yml", *files) for argument in ("-f", file)]
        self._environment = {**os.environ, "SHOAL_PROMETHEUS_PORT": str(self.port)}
        self._environment["SHOAL_GRAFANA_PORT"] = str(_free_port())

    def compose(self, *arguments: str, settings: Mapping[str, str] | None = None) -> str:
        command = [*find_command(), "-p", self.name, *self._files, *arguments]
        environment = {**self._environment, **(settings or {})}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def up(self, *arguments: str, settings: Mapping[str, str] | None = None) -> None:
        # By name, because Grafana's image may not be there.
        named = SERVICES + (("grafana",) if os.environ.get("SHOAL_WITH_GRAFANA") else ())
        self.compose("up", "-d", *arguments, *named, settings=settings)

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans")

    def containers(self, service: str | None = None, all: bool = False) -> list[Container]:
        labels = [f"com.docker.compose.project={self.name}"]
        if service is not None:
            labels.append(f"com.docker.compose.service={service}")
        return self.engine.containers.list(all=all, filters={"label": labels})

    def left(self) -> list[str]:
        """Names of everything that the engine still has of this project."""
        of_us = {"label": f"com.docker.compose.project={self.name}"}
        things = [*self.containers(all=True), *self.engine.networks.list(filters=of_us)]
        return [str(thing.name) for thing in [*things, *self.engine.volumes.list(filters=of_us)]]

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail=40")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits for a true value and returns it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S:g} s:\n{self.logs()}"
            time.sleep(0.5)
        return value

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Prometheus' answer; nothing while it does not answer."""
        try:
            return list(self._get("query", query=promql)["result"])
        except OSError:
            return []

    def value(self, promql: str) -> float | None:
        found = self.query(promql)
        return float(found[0]["value"][1]) if found else None

    def targets(self) -> dict[str, list[str]]:
        """Health of Prometheus' targets by job."""
        found: dict[str, list[str]] = {}
        try:
            active = self._get("targets", state="active")["activeTargets"]
        except OSError:
            return found
        for target in active:
            found.setdefault(target["labels"]["job"], []).append(target["health"])
        return found

    def steps_per_second(self, window_s: float) -> float:
        """Environment steps that the learner trains on, over the next `window_s`."""
        total = "sum(shoal_learner_env_steps_total)"
        start, began = self.until(lambda: self.value(f"{total} > 0"), "trained steps"), time.monotonic()
        self.until(lambda: time.monotonic() - began >= window_s, "end of the window")
        end = self.value(total)
        assert end is not None
        return (end - start) / (time.monotonic() - began)

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data


@contextmanager
def project(name: str, files: Sequence[str] = ()) -> Iterator[Project]:
    made = Project(name, files)
    try:
        yield made
    finally:
        made.down()
        made.engine.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
