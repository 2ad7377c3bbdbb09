"""What is read off the engine's answer, and what becomes of it in tables and waits."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.docker.containers import Container, from_attributes, names, published_at
from shoal.cli.docker.down import summary as down_summary
from shoal.cli.docker.progress import Progress
from shoal.cli.docker.ps import address_of, since, table
from shoal.cli.docker.up import summary
from shoal.cli.docker.waiting import NotUpError, state_of, wait_until_up
from tests.unit.cli.docker.fleet import attributes, container

NOW = datetime(2026, 11, 17, 9, 2, 0, tzinfo=UTC)


def test_one_that_runs() -> None:
    found = container("actor", 2)
    assert (found.service, found.number, found.state, found.health) == ("actor", 2, "running", "")
    assert found.started_at == datetime(2026, 11, 17, 9, 0, 52, 48123, tzinfo=UTC)
    assert found.addresses == ("172.18.0.2",)
    assert found.published == {}
    assert found.is_up
    assert not found.has_failed


def published(service: str, port: int, *bindings: tuple[str, str]) -> Container:
    told = attributes(service)
    told["NetworkSettings"]["Ports"] = {
        f"{port}/tcp": [{"HostIp": host, "HostPort": number} for host, number in bindings]
    }
    return from_attributes(told)


@pytest.mark.parametrize(
    ("bindings", "address"),
    [
        ([("127.0.0.1", "9090")], "127.0.0.1:9090"),
        ([("0.0.0.0", "9091"), ("::", "9091")], "127.0.0.1:9091"),
        ([("::1", "9092")], "[::1]:9092"),
    ],
)
def test_published_ports(bindings: list[tuple[str, str]], address: str) -> None:
    found = [container(), published("prometheus", 9090, *bindings)]
    assert published_at(found, "prometheus", 9090) == address
    assert published_at(found, "prometheus", 3000) is None
    assert published_at(found, "grafana", 9090) is None
    assert address_of(found, None) == address
    assert address_of(found, "10.0.0.1:9090") == "10.0.0.1:9090"
    assert address_of([container()], None) == "127.0.0.1:9090"


@pytest.mark.parametrize(
    ("state", "condition", "is_up", "has_failed"),
    [
        ({"Health": {"Status": "starting"}}, "running, starting", False, False),
        ({"Health": {"Status": "healthy"}}, "running, healthy", True, False),
        ({"Health": {"Status": "unhealthy"}}, "running, unhealthy", False, False),
        ({"Health": {"Status": "none"}}, "running", True, False),
        ({"Status": "restarting", "ExitCode": 1}, "restarting", False, False),
        ({"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"}, "created", False, False),
        ({"Status": "exited", "ExitCode": 0}, "done", True, False),
        ({"Status": "exited", "ExitCode": 2}, "exited (2)", False, True),
        ({"Status": "dead", "ExitCode": 137}, "dead", False, True),
    ],
)
def test_conditions(state: dict[str, Any], condition: str, is_up: bool, has_failed: bool) -> None:
    found = container(**state)
    assert (found.condition, found.is_up, found.has_failed) == (condition, is_up, has_failed)


def test_what_restarts_itself_has_not_failed_yet() -> None:
    told = attributes(Status="exited", ExitCode=1)
    told["HostConfig"]["RestartPolicy"]["Name"] = "on-failure"
    assert not from_attributes(told).has_failed


def test_numbers_are_told_where_there_are_several() -> None:
    several = [container("actor", 1), container("actor", 2), container("replay-0")]
    assert list(names(several).values()) == ["actor-1", "actor-2", "replay-0"]
    assert list(names(several[1:]).values()) == ["actor", "replay-0"]


@pytest.mark.parametrize(
    ("started", "text"),
    [("17T09:01:59", "1 s"), ("17T09:00:05", "115 s"), ("17T09:00:00", "2 min"), ("14T08:00:00", "3 d")],
)
def test_since(started: str, text: str) -> None:
    assert since(container(StartedAt=f"2026-11-{started}Z"), NOW) == text
    assert since(container(StartedAt=f"2026-11-{started}Z", Status="exited"), NOW) == "-"


def test_the_table() -> None:
    told = attributes("learner", Health={"Status": "healthy"})
    told["RestartCount"] = 3
    out = io.StringIO()
    Console(file=out, width=120).print(
        table([container(Status="exited", ExitCode=137), from_attributes(told)], NOW)
    )
    head, actor, learner = (line.split() for line in out.getvalue().splitlines())
    assert head == ["container", "state", "health", "restarts", "since", "address"]
    assert actor == ["actor", "exited", "(137)", "-", "0", "-", "-"]
    assert learner == ["learner", "running", "healthy", "3", "67", "s", "-"]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait(*listings: list[Container], timeout_s: float = 10) -> tuple[list[str], float]:
    """Lists of containers, one after the other; the last one stays. What was shown, and when it was over."""
    time, out = Time(), io.StringIO()
    left = list(listings)
    wait_until_up(
        lambda: left.pop(0) if len(left) > 1 else left[0],
        Progress(out),
        timeout_s,
        clock=time.clock,
        sleep=time.sleep,
    )
    return out.getvalue().splitlines(), time.now


def test_waits_until_all_are_healthy() -> None:
    starting = container("learner", Health={"Status": "starting"})
    healthy = container("learner", Health={"Status": "healthy"})
    job = container("token", Status="exited")
    lines, seconds = wait(
        [container(), starting, job], [container(), starting, job], [container(), healthy, job]
    )
    assert lines == ["2 of 3 up, waiting for learner (running, starting)"]
    assert seconds == 1.0


def test_one_that_failed_ends_the_wait_at_once() -> None:
    with pytest.raises(NotUpError, match="actor-2 ended with exit code 2: `shoal logs actor` shows why"):
        wait([container(), container("actor", 2, Status="exited", ExitCode=2)])


def test_the_wait_ends() -> None:
    with pytest.raises(NotUpError, match=r"not up after 10 s: 0 of 1 up, waiting for actor \(restarting\)"):
        wait([container(Status="restarting")])


def test_many_that_are_missing_are_counted() -> None:
    text = state_of([container("actor", number, Status="created") for number in range(1, 8)])
    assert text.startswith("0 of 7 up, waiting for actor-1 (created), ")
    assert text.endswith("actor-4 (created) and 3 more")


def test_what_up_and_down_say() -> None:
    lines = summary("shoal", [container(), published("grafana", 3000, ("127.0.0.1", "3000"))])
    assert lines[:2] == [
        "project shoal: 2 of 2 containers up",
        "  Grafana, with the dashboards: http://127.0.0.1:3000",
    ]
    assert "--project" not in "".join(lines)
    assert "`shoal down --project other`" in summary("other", [container()])[-1]
    assert "these volumes stay: shoal_run" in "".join(down_summary("shoal", 7, ["shoal_run"]))
    assert "no volume is left" in "".join(down_summary("shoal", 7, []))
    assert "there was no container" in "".join(down_summary("shoal", 0, []))
