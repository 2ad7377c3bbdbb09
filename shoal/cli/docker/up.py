"""`shoal up`: the compose project in the background, and where to look at it.

Compose creates the containers; this waits until they are healthy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli.docker.containers import Container, published_at
from shoal.cli.docker.options import PROJECT, Files, Project
from shoal.cli.say import say
from shoal.errors import UserError

# Service, its port in the container, what it is for.
PAGES = (("grafana", 3000, "Grafana, with the dashboards"), ("prometheus", 9090, "Prometheus"))


def up(
    actors: Annotated[int | None, typer.Option(min=0, help="Actor containers.")] = None,
    until_return: Annotated[
        float | None, typer.Option(help="Stop at this mean of 100 episodes, whatever the configuration says.")
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="Build the images again first.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--detach", help="Wait until all containers are up, or return at once.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="How long --wait waits.")] = 180.0,
    project: Project = PROJECT,
    file: Files = None,
) -> None:
    """Start the compose project in the background: services, Prometheus and Grafana.

    Containers that run with the same settings stay as they are. Training goes on from the newest checkpoint
    in the project's volumes.

    Exit codes: 0 up, 1 a container did not come up, 2 your mistake.
    """
    from shoal.cli.docker.compose import Compose
    from shoal.cli.docker.engine import Project as Containers
    from shoal.cli.docker.progress import Progress
    from shoal.cli.docker.waiting import wait_until_up

    if until_return is not None and not math.isfinite(until_return):
        raise UserError(f"--until-return {until_return}: give a number")
    with Containers.open("shoal up", project) as containers:
        compose = Compose.find(project, file)
        variables = {} if until_return is None else {"SHOAL__STOP__UNTIL_RETURN": repr(until_return)}
        with compose.with_environment("learner", variables) as given:
            given.run(
                "up",
                "-d",
                *(["--build"] if build else []),
                *([] if actors is None else ["--scale", f"actor={actors}"]),
            )
        if wait:
            with Progress() as progress:
                found = wait_until_up(containers.containers, progress, timeout)
        else:
            found = containers.containers()
    for line in summary(project, found):
        say(line)


def summary(project: str, containers: Sequence[Container]) -> list[str]:
    """What runs, where to look, how to go on."""
    num_up = sum(container.is_up for container in containers)
    lines = [f"project {project}: {num_up} of {len(containers)} containers up"]
    for service, port, what in PAGES:
        address = published_at(containers, service, port)
        if address is not None:
            lines.append(f"  {what}: http://{address}")
    option = "" if project == PROJECT else f" --project {project}"
    return [
        *lines,
        f"  look: `shoal ps{option}`, `shoal logs --follow{option}`",
        f"  stop: `shoal down{option}`; checkpoints and replay stay in volumes",
    ]
