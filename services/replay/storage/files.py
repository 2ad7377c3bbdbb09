"""The only place where the replay's storage touches the file system: tests put another one in its place.

Plain blocking calls that raise OSError, from writer and reader threads; no state of its own.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

# What a disk takes longer for than this is reported while it lasts.
SLOW_S = 5.0
# Buffers that one call may write (IOV_MAX of Linux and macOS).
_MAX_BUFFERS = 1024

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EFBIG: "the file is larger than the file system allows",
    errno.EIO: "the disk reports an error",
    errno.EACCES: "this process may not write there",
}


class Files(Protocol):
    """File descriptors are plain numbers."""

    def make_directory(self, path: Path) -> None:
        """With its parents, which survive the loss of power as well; it may be there."""
        ...

    def names(self, path: Path) -> list[str]:
        """What is in a directory."""
        ...

    def create(self, path: Path) -> int:
        """A new, empty file that is written at its end."""
        ...

    def append(self, descriptor: int, buffers: Sequence[bytes]) -> None:
        """All of them, or OSError: then any part of them may have been written."""
        ...

    def fsync(self, descriptor: int) -> None:
        """After an error nobody knows what is on the disk: do not trust a later success."""
        ...

    def truncate(self, descriptor: int, size: int) -> None: ...

    def open(self, path: Path) -> int:
        """For reading."""
        ...

    def pread(self, descriptor: int, size: int, offset: int) -> bytes: ...

    def close(self, descriptor: int) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def delete(self, path: Path) -> None:
        """It may be gone already."""
        ...

    def fsync_directory(self, path: Path) -> None:
        """Make names in it survive the loss of power."""
        ...


class RealFiles:
    """The file system of this machine."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        # Also where all were there: whoever made them may have been killed before it got here.
        for parent in path.parents:
            if not os.access(parent, os.W_OK):
                # Nothing in it is of our making, so nothing above it is.
                return
            self.fsync_directory(parent)
            if parent.is_mount():
                return

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, descriptor: int, buffers: Sequence[bytes]) -> None:
        for start in range(0, len(buffers), _MAX_BUFFERS):
            left: list[bytes | memoryview] = list(buffers[start : start + _MAX_BUFFERS])
            written = os.writev(descriptor, left)
            while left := _after(left, written):
                written = os.writev(descriptor, left)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def fsync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def why(error: OSError) -> str:
    """A reason that users understand."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


def try_to_delete(files: Files, path: Path) -> bool:
    """What cannot be deleted is logged: it takes room, and does no other harm."""
    try:
        files.delete(path)
    except OSError as error:
        log.warning("cannot delete %s: %s", path, why(error))
        return False
    return True


def _after(buffers: Sequence[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """What is left of the buffers when so many bytes of them are written."""
    for i, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[i + 1 :]]
        written -= len(buffer)
    return []
