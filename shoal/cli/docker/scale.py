"""`shoal scale`: more or fewer actors and inference replicas while the run goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli.docker.options import PROJECT, Files, Project
from shoal.cli.say import say
from shoal.errors import UserError

SCALABLE = ("actor", "inference")
MAX_REPLICAS = 1000


def scale(
    wanted: Annotated[
        list[str], typer.Argument(metavar="SERVICE=N...", help="actor=N and inference=N, one or both.")
    ],
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="How long to wait for them.")] = 180.0,
    project: Project = PROJECT,
    file: Files = None,
) -> None:
    """Change how many actors and inference replicas run; the others find them by themselves.

    Exit codes: 0 done, 1 a container did not come up, 2 your mistake.
    """
    from shoal.cli.docker.compose import Compose
    from shoal.cli.docker.engine import Project as Containers
    from shoal.cli.docker.progress import Progress
    from shoal.cli.docker.waiting import wait_until_up

    counts = parse(wanted)
    with Containers.open("shoal scale", project) as containers:
        containers.running()
        compose = Compose.find(project, file)
        scales = [word for service, count in counts.items() for word in ("--scale", f"{service}={count}")]
        # Neither what they depend on nor what runs already is touched, whatever has changed in the files.
        compose.run("up", "-d", "--no-deps", "--no-recreate", *scales, *counts)
        with Progress() as progress:
            found = wait_until_up(
                lambda: [each for each in containers.containers() if each.service in counts],
                progress,
                timeout,
            )
    for service in counts:
        running = sum(each.is_running for each in found if each.service == service)
        say(f"{service}: {running} running")


def parse(wanted: Sequence[str]) -> dict[str, int]:
    """Service -> number of containers. Raises UserError."""
    counts: dict[str, int] = {}
    for text in wanted:
        service, separator, number = text.partition("=")
        if not separator or re.fullmatch(r"\d{1,9}", number) is None or int(number) > MAX_REPLICAS:
            raise UserError(
                f"{text!r}: write it as SERVICE=N with N from 0 to {MAX_REPLICAS}, such as actor=4"
            )
        if service.startswith("replay"):
            raise UserError(
                f"{service} cannot be scaled: every replay shard is a service of its own with its own volume "
                "(replay-0, replay-1); add another one to the compose file"
            )
        if service not in SCALABLE:
            raise UserError(f"{service or text!r} cannot be scaled, only {' and '.join(SCALABLE)} can")
        if service in counts:
            raise UserError(f"{service} is there twice: {' '.join(wanted)}")
        counts[service] = int(number)
    return counts
