"""`shoal logs`: what the containers of the project wrote, in the order of time, with its name in front."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from shoal.cli.docker.containers import Container, names
from shoal.cli.docker.options import PROJECT, Project
from shoal.errors import UserError

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")


def logs(
    services: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERVICE]...", help="Such as learner or actor; all by default."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is being written.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the last N lines of each container.")
    ] = None,
    project: Project = PROJECT,
) -> None:
    """Show what the containers wrote; --follow goes on until Ctrl-C or until none runs.

    Exit codes: 0 shown, 2 your mistake, 130 Ctrl-C.
    """
    from shoal.cli.docker.engine import Project as Containers
    from shoal.cli.docker.log_stream import backlog, follow_on, time_text

    with Containers.open("shoal logs", project) as engine:
        chosen = choose(engine.containers(), services or [], project)
        printer = Printer(chosen)
        with contextlib.suppress(BrokenPipeError):
            newest = dict.fromkeys((each.id for each in chosen), time_text(datetime.now(UTC)))
            for line in backlog(engine, chosen, tail):
                newest[line.container_id] = line.time
                printer.print(line.container_id, line.text)
            if follow:
                wanted = {each.service for each in chosen}
                for line in follow_on(engine, wanted, newest, printer.learn):
                    printer.print(line.container_id, line.text)
            return
        _let_go_of_stdout()


def choose(containers: Sequence[Container], services: Sequence[str], project: str) -> list[Container]:
    """Those of the services, all if none is named. Raises UserError."""
    if not containers:
        raise UserError(
            f"project {project} is not there: start it with `shoal up`, or name another with --project"
        )
    there = sorted({each.service for each in containers})
    for service in services:
        if service not in there:
            raise UserError(f"project {project} has no service {service!r}: it has {', '.join(there)}")
    return [each for each in containers if not services or each.service in services]


class Printer:
    """Writes lines with the container's name in front, in colour on a terminal."""

    def __init__(self, containers: Sequence[Container]) -> None:
        # By id: the name, and the name in colour.
        self._names: dict[str, tuple[str, str]] = {}
        self._services: list[str] = []
        self._width = 0
        self._in_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.learn(containers)

    def learn(self, containers: Sequence[Container]) -> None:
        """Containers that may come later too."""
        for container_id, name in names(containers).items():
            self._width = max(self._width, len(name))
            self._names[container_id] = name, name
        for each in containers if self._in_colour else ():
            if each.service not in self._services:
                self._services.append(each.service)
            colour = COLOURS[self._services.index(each.service) % len(COLOURS)]
            name, _ = self._names[each.id]
            self._names[each.id] = name, typer.style(name, fg=colour)

    def print(self, container_id: str, text: str) -> None:
        """Raises BrokenPipeError when the reader is gone."""
        name, shown = self._names[container_id]
        print(f"{shown}{' ' * (self._width - len(name))} | {text}", flush=True)


def _let_go_of_stdout() -> None:
    """The interpreter flushes it at its end, into a pipe without a reader."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
