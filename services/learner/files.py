"""Writing files that are either whole or not there, even after `kill -9` or a power cut.

Used by checkpoints, the version counter and the result. Blocking: never called on the event loop.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from shoal.errors import UserError

log = logging.getLogger(__name__)

# Names with this prefix are never read: whoever finds one may delete it.
TEMPORARY_PREFIX = ".tmp-"


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, data: bytes) -> None:
    """Put `data` in place of the file: readers see the old or the new content, never a part."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    write_synced(temporary, data)
    temporary.replace(path)
    sync_directory(path.parent)


class DirectoryLock:
    """Keeps a directory to one process at a time. Goes with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """Raises UserError if another process has it."""
        self._file = (directory / ".lock").open("wb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"another learner is running in {directory}: stop it, or use another run.dir"
            ) from None
        except OSError as error:
            log.warning("cannot lock %s (%s): make sure that one learner uses it", directory, error.strerror)

    def release(self) -> None:
        self._file.close()
