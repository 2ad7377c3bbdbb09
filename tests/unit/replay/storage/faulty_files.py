"""A file system that fails on command, and that forgets what was not fsynced when the power goes.

It works on real files below a temporary directory; only fsync does not bother the real disk. Set its
attributes from the test; the writer thread sees them at its next call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from services.replay.storage.files import RealFiles


class FaultyFiles(RealFiles):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        # errno by name of the call; `fail` and `heal` set it.
        self.failing: dict[str, int] = {}
        # Bytes of a failing append that still reach the file.
        self.partial_bytes = 0
        # Bytes that all files together may have.
        self.capacity: int | None = None
        # A control: fsync returns and does nothing.
        self.fsync_works = True
        # Cleared: appends hang until it is set.
        self.may_append = threading.Event()
        self.may_append.set()
        self.appending = threading.Event()
        # Cleared: deletions hang.
        self.may_delete = threading.Event()
        self.may_delete.set()
        self._paths: dict[int, Path] = {}
        self._synced_bytes: dict[Path, int] = {}
        self._synced_names: set[Path] = set()

    def fail(self, number: int, *calls: str, partial_bytes: int = 0) -> None:
        self.partial_bytes = partial_bytes
        self.failing = dict.fromkeys(calls, number)

    def heal(self) -> None:
        self.failing = {}
        self.capacity = None

    def make_directory(self, path: Path) -> None:
        self._call("make_directory")
        super().make_directory(path)

    def create(self, path: Path) -> int:
        self._call("create")
        descriptor = super().create(path)
        self._paths[descriptor] = path
        self._synced_bytes[path] = 0
        return descriptor

    def open(self, path: Path) -> int:
        self._call("open")
        descriptor = super().open(path)
        self._paths[descriptor] = path
        return descriptor

    def append(self, descriptor: int, buffers: Sequence[bytes]) -> None:
        self.appending.set()
        self.may_append.wait()
        whole = b"".join(buffers)
        room = len(whole)
        number = self.failing.get("append")
        if number is not None:
            room = min(self.partial_bytes, room)
        elif self.capacity is not None:
            used = sum(file.stat().st_size for file in self._paths[descriptor].parent.iterdir())
            room = max(min(self.capacity - used, room), 0)
            number = errno.ENOSPC if room < len(whole) else None
        self.calls["append"] += 1
        super().append(descriptor, [whole[:room]] if number is not None else buffers)
        if number is not None:
            raise OSError(number, os.strerror(number))

    def fsync(self, descriptor: int) -> None:
        self._call("fsync")
        if self.fsync_works:
            self._synced_bytes[self._paths[descriptor]] = os.fstat(descriptor).st_size

    def truncate(self, descriptor: int, size: int) -> None:
        self._call("truncate")
        super().truncate(descriptor, size)

    def rename(self, old: Path, new: Path) -> None:
        self._call("rename")
        super().rename(old, new)
        self._synced_bytes[new] = self._synced_bytes.pop(old)

    def delete(self, path: Path) -> None:
        self._call("delete")
        self.may_delete.wait()
        super().delete(path)

    def fsync_directory(self, path: Path) -> None:
        self._call("fsync_directory")
        if self.fsync_works:
            self._synced_names |= {path / name for name in os.listdir(path)}

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._call("pread")
        return super().pread(descriptor, size, offset)

    def lose_power(self, to: Path) -> None:
        """Write to the directory `to` what the disk holds for sure at this moment."""
        to.mkdir()
        for path, size in self._synced_bytes.copy().items():
            # The writer may go on, and files come and go.
            with contextlib.suppress(FileNotFoundError):
                if path in self._synced_names:
                    (to / path.name).write_bytes(path.read_bytes()[:size])

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.failing:
            raise OSError(self.failing[name], os.strerror(self.failing[name]))
