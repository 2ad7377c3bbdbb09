"""One supervised process: starting it, its log, what it announced, why it ended.

Owned by `Supervisor`, read by the views; everything runs on the supervisor's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from shoal.cli.plan import ProcessSpec

# As much of the end of a log as is searched for the reason of a crash.
TAIL_BYTES = 16_384


class State(Enum):
    """Where a process is in its life."""

    STARTING = "starting"
    UP = "up"
    WAITING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Announcement:
    """What a service wrote once it listened."""

    pid: int
    metrics: str


class Child:
    """A process of the run, over all its lives."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.state = State.STARTING
        self.num_restarts = 0
        self.announcement: Announcement | None = None
        self.started_at = time.monotonic()
        # Set once the process has to end and must not come back.
        self.stopping = asyncio.Event()
        self.gone = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self, command: list[str], environment: Mapping[str, str], group: int) -> None:
        """Starts a life. Output goes to the end of the log."""
        # A file of the life before would show a dead address.
        self.spec.announce.unlink(missing_ok=True)
        self.announcement = None
        self.state = State.STARTING
        self.started_at = time.monotonic()
        with self._open_log() as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=group,
            )

    def _open_log(self) -> BinaryIO:
        return open(self.log, "ab")

    async def ended(self) -> int:
        """Waits for the end of this life; its exit code, negative for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        self._process = None
        self.announcement = None
        return code

    def check_announcement(self) -> bool:
        """True when the process has just come up."""
        if self.state is not State.STARTING or self._process is None:
            return False
        try:
            record = json.loads(self.spec.announce.read_text())
            announcement = Announcement(int(record["pid"]), str(record["metrics"]))
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if announcement.pid != self._process.pid:
            return False
        self.announcement = announcement
        self.state = State.UP
        return True

    def send(self, number: signal.Signals) -> None:
        """Signals the process, if it lives."""
        if self._process is not None:
            # Not by `send_signal`: before Python 3.13 it may collect the exit code of a process that ends
            # in this moment, and `ended` would return 255 for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def stop(self) -> None:
        """Asks the process to drain; it will not be started again."""
        self.stopping.set()
        if self._process is not None:
            # One that is not up yet has nothing to drain, and may take long to notice a signal.
            self.send(signal.SIGTERM if self.state is State.UP else signal.SIGKILL)
            self.state = State.STOPPING

    def error_line(self) -> str | None:
        """The last `error: ...` line of this life, without the prefix."""
        errors = [line for line in self._tail() if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else None

    def last_line(self) -> str | None:
        lines = [line.strip() for line in self._tail() if line.strip()]
        return lines[-1] if lines else None

    def _tail(self) -> list[str]:
        try:
            with open(self.log, "rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - TAIL_BYTES))
                return log.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def describe_exit(code: int) -> str:
    """`code` as the end of a sentence about the process."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
