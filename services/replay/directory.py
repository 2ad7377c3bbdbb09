"""The directory of a shard's files: where it is, that it exists, and that no other process uses it.

Used by `__main__` before the shard reads anything. A shard whose tables keep no files touches no disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from services.replay.storage.files import RealFiles
from shoal.config import Config
from shoal.errors import ConfigError, UserError

_LOCK = "lock"
# What an id must look like to name a directory: nothing that could lead elsewhere.
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def shard_directory(config: Config) -> Path | None:
    """Where this shard keeps its files; None if no table keeps any."""
    replay = config.replay
    if not any(table.on_disk for table in replay.tables.values()):
        return None
    if replay.dir is not None:
        return replay.dir
    if not _SAFE_ID.fullmatch(replay.id):
        raise ConfigError(
            f"replay.id {replay.id!r} cannot name the directory of this shard's files: use letters, digits, "
            "'.', '_' and '-', or set replay.dir"
        )
    return config.run.dir / "replay" / replay.id


class DirectoryLock:
    """Holds a directory for this process until `release`, or until the process ends, however it does."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory if need be. Raises UserError if it cannot be used or is in use."""
        try:
            RealFiles().make_directory(directory)
            self._descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"cannot keep replay files in {directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise UserError(
                f"the replay files in {directory} are in use by process {holder}: stop it, or give each "
                "shard its own replay.id or replay.dir"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise UserError(
                f"cannot lock {directory / _LOCK}: {error.strerror}; keep replay files on a disk with locks"
            ) from None
        # For the message above; it need not be there, and a full disk may not take it.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
