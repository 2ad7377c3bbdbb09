"""Options that several of the Docker commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PROJECT = "shoal"

Project = Annotated[str, typer.Option(metavar="NAME", help="Compose project.")]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Compose file, docker-compose.yml by default; repeatable.",
    ),
]
Prometheus = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="By default where the project publishes it, or 127.0.0.1:9090."),
]
