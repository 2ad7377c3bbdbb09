"""Disks that begin to refuse while a shard writes to them, and end it when told."""

from __future__ import annotations

import errno
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.chaos.faults import VictimShard


class Disk(ABC):
    """One shard on one disk."""

    errno: int

    def __init__(
        self, tmp_path: Path, table: dict[str, object], rig: str = "", prefix: tuple[str, ...] = ()
    ) -> None:
        table = {"insert_timeout_s": 1.0, **table}
        self.withholds_acks = table["durability"] != "memory"
        self.shard = VictimShard(tmp_path, table=table, rig=rig, prefix=prefix)

    @property
    def data(self) -> Path:
        """The shard's directory, as we see it."""
        return self.shard.data

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> None: ...


class LimitedFiles(Disk):
    """No file can be longer than 32 KiB: the real limit of a process, set from outside."""

    errno = errno.EFBIG
    _LIMIT_BYTES = 32 << 10

    def begin(self) -> None:
        self._set(self._LIMIT_BYTES)

    def end(self) -> None:
        self._set(psutil.RLIM_INFINITY)

    def _set(self, num_bytes: int) -> None:
        self.shard.process.rlimit(psutil.RLIMIT_FSIZE, (num_bytes, psutil.RLIM_INFINITY))


class SmallDisk(Disk):
    """A file system that only the shard sees: 16 MiB, and more when it is told to end."""

    errno = errno.ENOSPC

    def __init__(self, tmp_path: Path, table: dict[str, object]) -> None:
        self._mounted = tmp_path / "shard.data"
        self._mounted.mkdir()
        script = f'mount -t tmpfs -o size=16m none "{self._mounted}" && exec "$@"'
        super().__init__(tmp_path, table, prefix=("unshare", "--mount", "sh", "-c", script, "sh"))

    @property
    def data(self) -> Path:
        return Path(f"/proc/{self.shard.pid}/root{self._mounted}")

    def begin(self) -> None:
        """It is full soon."""

    def end(self) -> None:
        where = ("nsenter", "-t", str(self.shard.pid), "-m")
        subprocess.run((*where, "mount", "-o", "remount,size=2g", str(self._mounted)), check=True)


class FailingLayer(Disk):
    """The layer between the shard and its files refuses while a file says so."""

    errno = errno.EROFS

    def __init__(self, tmp_path: Path, table: dict[str, object]) -> None:
        self._says = tmp_path / "disk-says"
        super().__init__(tmp_path, table, rig=f"disk:{self._says}")

    def begin(self) -> None:
        self._say("read-only")

    def slow_down(self, seconds: float) -> None:
        """Each write takes as long."""
        self._say(f"slow {seconds}")

    def end(self) -> None:
        self._says.unlink()

    def _say(self, order: str) -> None:
        """As a whole or not at all: the shard reads it while we write."""
        draft = self._says.with_suffix(".draft")
        draft.write_text(order)
        draft.replace(self._says)


DISKS: dict[str, Callable[[Path, dict[str, object]], Disk]] = {
    "files of limited size": LimitedFiles,
    "full file system": SmallDisk,
    "read-only": FailingLayer,
}


def can_mount() -> bool:
    """Whether we may have a disk of our own: only root, and not in every container."""
    probe = ("unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt")
    return (
        shutil.which("unshare") is not None
        and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )
