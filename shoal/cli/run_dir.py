"""The run directory: its layout, its lock, and the choice of its name.

    config.yaml      the effective configuration, secrets left out
    logs/            one file per process, such as actor-0.log
    checkpoints/     written by the learner
    tensorboard/     written by the learner
    untrained.json   returns of random play, by policy, which the learner compares with
    history.jsonl    what the live view saw, one sample a line
    result.json      how the run ended
    policies/NAME/   of several policies, each one's checkpoints, tensorboard and result.json
    report.html      the page made of the above

`shoal train --resume` goes on in one: the learner resumes from its newest checkpoint. `claim` refuses a
directory that a live run uses. Called by the commands, before anything is started.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import untrained
from shoal.errors import UserError

RUNS = Path("runs")


@dataclass(frozen=True)
class RunDir:
    """Paths below one run directory."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def untrained(self) -> Path:
        return self.root / untrained.NAME

    @property
    def history(self) -> Path:
        return self.root / "history.jsonl"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def policy_results(self) -> tuple[Path, ...]:
        """Those of the single policies, if there are several, in directories named after them."""
        return tuple(sorted(self.root.glob("policies/*/result.json")))

    @property
    def has_checkpoints(self) -> bool:
        """Of any policy, whole or broken."""
        places = ("checkpoints", "policies/*/checkpoints")
        return any(any(self.root.glob(f"{place}/[0-9]*-step-*")) for place in places)

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def sockets(self) -> Path:
        """Names the socket directory while a run goes on, see `shoal.cli.live_run`."""
        return self.root / ".sockets"

    @property
    def lock(self) -> Path:
        """Held by `shoal train`; a learner has one of its own beside it."""
        return self.root / ".train.lock"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def read_result(self) -> dict[str, Any]:
        """The record in result.json, or nothing."""
        return _read_record(self.result)

    def read_policy_results(self) -> dict[str, dict[str, Any]]:
        """By policy; nothing if there is one for all."""
        return {path.parent.name: _read_record(path) for path in self.policy_results}

    def create(self) -> bool:
        """Makes the directory and what `shoal train` writes into; False if it existed. Raises UserError."""
        is_new = not self.root.exists()
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.root, error) from None
        return is_new

    def claim(self) -> int:
        """Takes the lock; it is held as long as the returned descriptor is open, in any process."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(self.root, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(
                f"run directory {self.root} is in use by another run (process {owner or 'unknown'}); "
                "stop that one or choose another with --run-dir"
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            os.close(descriptor)
            raise unwritable(self.root, error) from None
        return descriptor


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def default_root(name: str, *, parent: Path = RUNS, when: time.struct_time | None = None) -> Path:
    """`runs/<name>-<YYYYmmdd-HHMMSS>`, with a number behind it if that is taken."""
    stamp = time.strftime("%Y%m%d-%H%M%S", when or time.localtime())
    root = parent / f"{name}-{stamp}"
    number = 2
    while root.exists():
        root = parent / f"{name}-{stamp}-{number}"
        number += 1
    return root


def run_name(text: str) -> str:
    """`text` (a preset, file or env id) made fit for `run.name`."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    return name[:64] or "run"


def unwritable(root: Path, error: OSError) -> UserError:
    """For the user: what failed and what to do."""
    return UserError(
        f"cannot write run directory {root}: {error.strerror or error}; make room there or make it writable, "
        "or give a new run another --run-dir"
    )
