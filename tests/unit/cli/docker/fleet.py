"""Containers for the tests of the Docker commands: as the engine describes them."""

from __future__ import annotations

from typing import Any

from shoal.cli.docker.containers import Container, from_attributes


def attributes(service: str = "actor", number: int = 1, **state: Any) -> dict[str, Any]:
    """What an engine answers, cut down to what is read."""
    return {
        "Id": f"{service}{number}".ljust(64, "0"),
        "RestartCount": 0,
        "Config": {
            "Labels": {
                "com.docker.compose.project": "shoal",
                "com.docker.compose.service": service,
                "com.docker.compose.container-number": str(number),
            }
        },
        "HostConfig": {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
        "State": {"Status": "running", "ExitCode": 0, "StartedAt": "2026-11-17T09:00:52.048123456Z"} | state,
        "NetworkSettings": {
            "Ports": {"9464/tcp": None},
            "Networks": {"shoal_default": {"IPAddress": f"172.18.0.{number}"}},
        },
    }


def container(service: str = "actor", number: int = 1, **state: Any) -> Container:
    return from_attributes(attributes(service, number, **state))
