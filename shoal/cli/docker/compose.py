"""Calls compose's own command: `docker compose`, the plugin, or `docker-compose` from 1.29 on.

Used by the commands that create, scale and remove containers. What compose says goes to stderr as it comes,
since building images takes minutes. Blocking.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from shoal.errors import UserError

DEFAULT_FILES = ("docker-compose.yml", "docker-compose.yaml", "compose.yaml", "compose.yml")
OLDEST_STANDALONE = (1, 29)
PROJECT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
VERSION_TIMEOUT_S = 30

# What `docker compose version --short` and the like print; None if it cannot be called.
Ask = Callable[[Sequence[str]], str | None]


def find_command(ask: Ask | None = None) -> tuple[str, ...]:
    """The compose command of this machine. Raises UserError."""
    ask = ask or _ask
    if ask(("docker", "compose", "version", "--short")) is not None:
        return ("docker", "compose")
    version = ask(("docker-compose", "version", "--short"))
    if version is not None and _numbers(version) >= OLDEST_STANDALONE:
        return ("docker-compose",)
    found = "none is on PATH" if version is None else f"docker-compose is {version}, too old"
    raise UserError(
        f"no usable compose command: {found}; install the plugin `docker compose`, or docker-compose 1.29 "
        "or newer"
    )


def _ask(command: Sequence[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def find_files(given: Sequence[Path], directory: Path = Path()) -> tuple[Path, ...]:
    """The compose files to use. Raises UserError if one is missing."""
    for path in given:
        if not path.is_file():
            raise UserError(f"no compose file {path}")
    if given:
        return tuple(given)
    for name in DEFAULT_FILES:
        if (directory / name).is_file():
            return (directory / name,)
    raise UserError(
        f"no {DEFAULT_FILES[0]} in {directory.absolute()}: go to shoal's checkout, or name one with --file"
    )


def check_project(name: str) -> str:
    if PROJECT_NAME.fullmatch(name) is None:
        raise UserError(
            f"--project {name!r}: use small letters, digits, - and _, with a letter or digit in front"
        )
    return name


@dataclass(frozen=True)
class Compose:
    """One project: the command, its files and its name."""

    command: tuple[str, ...]
    files: tuple[Path, ...]
    project: str

    @classmethod
    def find(cls, project: str, files: Sequence[Path] | None) -> Compose:
        """Raises UserError for whatever is missing."""
        check_project(project)
        found = find_files(files or ())
        return cls(find_command(), found, project)

    def arguments(self, *words: str) -> list[str]:
        files = [word for path in self.files for word in ("-f", str(path))]
        return [*self.command, "-p", self.project, *files, *words]

    def run(self, *words: str) -> None:
        """Raises UserError if compose refuses, which has then said why on stderr."""
        done = subprocess.run(
            self.arguments(*words), stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        )
        if done.returncode:
            name = " ".join(self.command)
            raise UserError(
                f"`{name} {words[0]}` failed with exit code {done.returncode}: the lines above say why"
            )

    @contextlib.contextmanager
    def with_environment(self, service: str, variables: Mapping[str, str]) -> Iterator[Compose]:
        """The same project with more environment for one service, by a file on top that lives as long."""
        if not variables:
            yield self
            return
        on_top: dict[str, object] = {"services": {service: {"environment": dict(variables)}}}
        # Older versions of compose refuse files that name different versions of the format.
        if (version := _format_version(self.files[0])) is not None:
            on_top["version"] = version
        with tempfile.TemporaryDirectory(prefix="shoal-up-") as directory:
            path = Path(directory) / "options.yml"
            path.write_text(yaml.safe_dump(on_top), encoding="utf-8")
            yield Compose(self.command, (*self.files, path), self.project)


def _format_version(file: Path) -> str | None:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    version = tree.get("version") if isinstance(tree, dict) else None
    return None if version is None else str(version)
