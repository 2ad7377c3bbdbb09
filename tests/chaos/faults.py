"""What is done to a shard: its process is killed, its files are damaged, its disk refuses to write.

A `VictimShard` is the real program in a process of its own, on a unix socket and a directory that outlive it.
Everything here is done from outside, by pid or by path; what can only be done inside is in `rigged.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from shoal.journal.events import TableState
from shoal.journal.reader import SEGMENT_SUFFIX, Entry, read_segment
from tests.service.replay_server import ROOT, ShardProcess

# More rounds find more: see README.md.
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(32)

# What a table of these tests is unless a test says otherwise. Nothing is evicted.
SEQUENCE_TABLE = {"kind": "sequence", "max_items": 1 << 20}


def seeded() -> random.Random:
    """Random moments of one test; the seed is printed so that they can be had again."""
    print(f"CHAOS_SEED={SEED} CHAOS_ROUNDS={ROUNDS}")
    return random.Random(SEED)


class VictimShard(ShardProcess):
    """One table called `train`, kept in `<directory>/<name>.data`."""

    def __init__(
        self,
        directory: Path,
        name: str = "shard",
        *settings: str,
        table: dict[str, object] | None = None,
        rig: str = "",
        prefix: tuple[str, ...] = (),
    ) -> None:
        """`rig` is for `rigged.py`; `prefix` is a command that starts the program."""
        fields = ", ".join(f"{key}: {value}" for key, value in (SEQUENCE_TABLE | (table or {})).items())
        self.data = directory / f"{name}.data"
        self._rig = rig
        self._prefix = prefix
        super().__init__(
            directory,
            name,
            f"replay.tables={{train: {{{fields}}}}}",
            f"replay.dir={self.data}",
            "limits.max_message_bytes=1073741824",
            *settings,
        )

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.pid)

    @property
    def rss_bytes(self) -> int:
        return int(self.process.memory_info().rss)

    def _spawn(self) -> subprocess.Popen[bytes]:
        module = ["tests.chaos.rigged", self._rig] if self._rig else ["services.replay"]
        command = [*self._prefix, sys.executable, "-m", *module]
        for setting in self._settings:
            command += ["--set", setting]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def files_of(directory: Path) -> list[Path]:
    """The segment files of the table that are there; not a lock, nor a file that is not finished."""
    return sorted(directory.glob(f"*/*{SEGMENT_SUFFIX}"))


def table_states(directory: Path) -> list[tuple[float, TableState]]:
    """The snapshots in these files, and when each was complete (`time.time`); the newest first."""
    found = []
    for path in reversed(files_of(directory)):
        # Anything may be deleted meanwhile.
        with contextlib.suppress(FileNotFoundError):
            first = next(read_segment(path), None)
            if isinstance(first, Entry) and isinstance(first.record, TableState):
                found.append((path.stat().st_mtime, first.record))
    return found


def frozen_copy(shard: VictimShard, directory: Path, to: Path) -> None:
    """The files as `kill -9` would leave them at this moment; the shard then goes on."""
    shard.process.suspend()
    try:
        shutil.copytree(directory, to)
    finally:
        shard.process.resume()
