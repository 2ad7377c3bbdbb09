"""`shoal down`: stops and removes the project's containers, and says what stays."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.docker.options import PROJECT, Files, Project
from shoal.cli.say import say


def down(
    volumes: Annotated[
        bool, typer.Option("--volumes", help="Remove the volumes too: checkpoints, replay, curves.")
    ] = False,
    project: Project = PROJECT,
    file: Files = None,
) -> None:
    """Stop and remove the containers and networks of the project; the volumes stay unless you say so.

    Services drain first: the learner leaves a checkpoint.

    Exit codes: 0 gone, 2 your mistake.
    """
    from shoal.cli.docker.compose import Compose
    from shoal.cli.docker.engine import Project as Containers

    with Containers.open("shoal down", project) as containers:
        compose = Compose.find(project, file)
        num_containers = len(containers.containers())
        compose.run("down", "--remove-orphans", *(["--volumes"] if volumes else []))
        for line in summary(project, num_containers, containers.volumes()):
            say(line)


def summary(project: str, num_containers: int, volumes: list[str]) -> list[str]:
    lines = [
        f"project {project}: {num_containers} containers removed"
        if num_containers
        else f"project {project}: there was no container"
    ]
    if volumes:
        lines.append(f"  these volumes stay: {', '.join(volumes)}; `shoal down --volumes` removes them")
    else:
        lines.append("  no volume is left")
    return [*lines, "  images stay: `docker image ls` lists them"]
