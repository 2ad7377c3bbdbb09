"""What one container of a compose project is like, read off the engine's answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
NUMBER_LABEL = "com.docker.compose.container-number"
ONE_OFF_LABEL = "com.docker.compose.oneoff"
EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Container:
    """`state` and `health` in Docker's own words; `health` is empty where no health check is defined."""

    id: str
    service: str
    number: int
    state: str
    health: str
    exit_code: int
    num_restarts: int
    # Of this life; None if it never had one.
    started_at: datetime | None
    # In the project's networks.
    addresses: tuple[str, ...]
    # Container port -> host:port on this machine.
    published: Mapping[int, str]
    restarts_itself: bool

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def is_done(self) -> bool:
        """Ended by itself and well: a job, or a learner that has reached its target."""
        return self.state == "exited" and self.exit_code == 0

    @property
    def is_up(self) -> bool:
        return self.is_done or (self.is_running and self.health in ("", "healthy"))

    @property
    def has_failed(self) -> bool:
        """It ended badly and nobody will start it again."""
        ended = self.state == "dead" or (self.state == "exited" and self.exit_code != 0)
        return ended and not self.restarts_itself

    @property
    def condition(self) -> str:
        """In one or two words."""
        if self.is_done:
            return "done"
        if self.state == "exited":
            return f"exited ({self.exit_code})"
        return f"{self.state}, {self.health}" if self.is_running and self.health else self.state


def from_attributes(attributes: Mapping[str, Any]) -> Container:
    """Of what the engine tells about a container (`docker inspect`)."""
    labels = attributes["Config"]["Labels"] or {}
    state = attributes["State"]
    network = attributes.get("NetworkSettings") or {}
    policy = (attributes.get("HostConfig") or {}).get("RestartPolicy") or {}
    return Container(
        id=attributes["Id"],
        service=labels.get(SERVICE_LABEL, ""),
        number=_number(labels.get(NUMBER_LABEL)),
        state=state["Status"],
        health=_health(state),
        exit_code=int(state.get("ExitCode", 0)),
        num_restarts=int(attributes.get("RestartCount", 0)),
        started_at=_time(state.get("StartedAt", "")),
        addresses=tuple(
            each["IPAddress"] for each in (network.get("Networks") or {}).values() if each.get("IPAddress")
        ),
        published=_published(network.get("Ports") or {}),
        restarts_itself=policy.get("Name", "") not in ("", "no"),
    )


def _number(label: str | None) -> int:
    return int(label) if label is not None and label.isdecimal() else 1


def _health(state: Mapping[str, Any]) -> str:
    status = (state.get("Health") or {}).get("Status", "")
    return "" if status == "none" else str(status)


def _time(text: str) -> datetime | None:
    """Docker writes nanoseconds, and the year 1 for never."""
    if not text or text.startswith("0001"):
        return None
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(fraction + '000000')[:6]}+00:00")


def _published(ports: Mapping[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for port, bindings in ports.items():
        for binding in bindings or ():
            host = "127.0.0.1" if binding["HostIp"] in (*EVERYWHERE, "") else binding["HostIp"]
            name = f"[{host}]" if ":" in host else host
            # The first is that of IPv4, if there are both.
            found.setdefault(int(port.split("/")[0]), f"{name}:{binding['HostPort']}")
    return found


def names(containers: Sequence[Container]) -> dict[str, str]:
    """What to call each container, by id: its service, with its number where the service has several."""
    counts = Counter(container.service for container in containers)
    return {
        each.id: each.service if counts[each.service] == 1 else f"{each.service}-{each.number}"
        for each in containers
    }


def published_at(containers: Iterable[Container], service: str, port: int) -> str | None:
    """Where a port of a service is reached on this machine."""
    for container in containers:
        if container.service == service and port in container.published:
            return container.published[port]
    return None
