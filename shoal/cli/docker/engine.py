"""The Docker engine, as far as the commands need it: the containers of one project, by compose's labels.

Wraps the Docker SDK, which is imported only here and only when a command asks for it. Every error of the
engine leaves as one of shoal's, in one line. Blocking; `follow` may be called from several threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from shoal.cli.docker.compose import check_project
from shoal.cli.docker.containers import ONE_OFF_LABEL, PROJECT_LABEL, Container, from_attributes
from shoal.cli.requirements import require
from shoal.errors import ShoalError, UserError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container as SdkContainer

DEFAULT_ENGINE = "unix:///var/run/docker.sock"


class EngineError(ShoalError):
    """The engine refused something, or went away."""


def connect(command: str) -> DockerClient:
    """The engine that `docker` itself would use. Raises UserError."""
    require(command, ("docker",), "docker")
    import docker
    from docker.errors import DockerException

    try:
        return docker.from_env()
    except DockerException as error:
        raise UserError(_no_engine(error)) from None


def _no_engine(error: Exception) -> str:
    address = os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    reason = " ".join(str(error).split())
    if "Permission denied" in reason or "PermissionError" in reason:
        return (
            f"no permission on the Docker engine at {address}: run it as a user of the group `docker` "
            "(`sudo usermod -aG docker $USER`, then log in again)"
        )
    if "FileNotFoundError" in reason or "ConnectionRefusedError" in reason or "Connection refused" in reason:
        return (
            f"no Docker engine answers at {address}: start one (`sudo systemctl start docker`), "
            "or set DOCKER_HOST"
        )
    return f"the Docker engine at {address} cannot be used: {reason}"


class Project:
    """The containers of one compose project."""

    def __init__(self, client: DockerClient, name: str) -> None:
        self.name = check_project(name)
        self._client = client
        self._filters: dict[str, str | list[str] | bool] = {"label": [f"{PROJECT_LABEL}={name}"]}

    @classmethod
    def open(cls, command: str, name: str) -> Project:
        check_project(name)
        return cls(connect(command), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def containers(self) -> list[Container]:
        """All of them, those that do not run too, by service and number."""
        with _errors("list containers"):
            found = self._client.containers.list(all=True, filters=self._filters, ignore_removed=True)
        listed = [from_attributes(each.attrs) for each in found if each.labels.get(ONE_OFF_LABEL) != "True"]
        return sorted(listed, key=lambda container: (container.service, container.number))

    def running(self) -> list[Container]:
        """As `containers`. Raises UserError if none of them runs."""
        found = self.containers()
        if not any(container.is_running for container in found):
            state = "is not there" if not found else "has no running container"
            raise UserError(
                f"project {self.name} {state}: start it with `shoal up`, or name another with --project"
            )
        return found

    def volumes(self) -> list[str]:
        with _errors("list volumes"):
            return sorted(volume.name for volume in self._client.volumes.list(filters=self._filters))

    def kill(self, container_id: str, signal: str = "SIGKILL") -> bool:
        """Whether it was there to be killed."""
        return self._do(container_id, "kill", lambda container: container.kill(signal))

    def start(self, container_id: str) -> bool:
        """Whether it is there; one that runs stays as it is."""
        return self._do(container_id, "start", lambda container: container.start())

    def log_lines(
        self, container_id: str, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> Iterator[bytes]:
        """Lines with the time in front, as the engine writes it; ends quietly when the container goes."""
        from docker.errors import NotFound
        from requests.exceptions import RequestException

        rest = b""
        try:
            chunks = self._client.containers.get(container_id).logs(
                stream=True,
                follow=follow,
                timestamps=True,
                tail="all" if tail is None else tail,
                since=since,
            )
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
        except NotFound:
            return
        except RequestException as error:
            raise EngineError(f"cannot read a container's log: {error}") from None
        if rest:
            yield rest

    def _do(self, container_id: str, what: str, call: Callable[[SdkContainer], object]) -> bool:
        from docker.errors import APIError, NotFound

        with _errors(f"{what} a container"):
            try:
                call(self._client.containers.get(container_id))
            except NotFound:
                return False
            except APIError as error:
                # What is over cannot be killed: it went by itself in the meantime.
                if what == "kill" and error.status_code == 409:
                    return False
                raise
        return True


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        raise EngineError(f"the Docker engine did not {what}: {error.explanation or error}") from None
    except (DockerException, RequestException) as error:
        raise EngineError(f"the Docker engine did not {what}: {error}") from None
