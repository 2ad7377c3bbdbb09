"""Damage to a shard's files, and what each may cost at most: read from the files while they are whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.journal.framing import Frame, scan_frames
from shoal.v1.journal_pb2 import JournalRecord
from tests.chaos.faults import files_of


@dataclass(frozen=True)
class FrameAt:
    """A frame of a file: its bytes, and the keys of the items in it if there are any."""

    begin: int
    end: int
    keys: range


@dataclass(frozen=True)
class Damage:
    """A flipped bit, or a cut: `bit` None."""

    file: str
    offset: int
    bit: int | None

    def __str__(self) -> str:
        what = "cut" if self.bit is None else f"bit {self.bit} flipped"
        return f"{self.file}: {what} at byte {self.offset}"

    def do(self, directory: Path) -> None:
        path = directory / self.file
        if self.bit is None:
            os.truncate(path, self.offset)
            return
        with path.open("r+b") as file:
            file.seek(self.offset)
            byte = file.read(1)[0]
            file.seek(self.offset)
            file.write(bytes([byte ^ 1 << self.bit]))

    def keys_touched(self, directory: Path) -> set[int]:
        """The items that it may cost."""
        frames = frames_of(directory / self.file)
        if self.bit is None:
            touched = [frame for frame in frames if frame.end > self.offset]
        else:
            touched = [frame for frame in frames if frame.begin <= self.offset < frame.end]
        return {key for frame in touched for key in frame.keys}


def every_percent(directory: Path) -> Iterator[Damage]:
    """Two at each of a hundred places, evenly over the bytes of all files."""
    files = [(path, path.stat().st_size) for path in files_of(directory)]
    total = sum(size for _, size in files)
    for percent in range(100):
        offset = total * percent // 100
        for path, size in files:
            if offset < size:
                name = str(path.relative_to(directory))
                yield Damage(name, offset, percent % 8)
                yield Damage(name, offset, None)
                break
            offset -= size


def frames_of(path: Path) -> list[FrameAt]:
    found = []
    for frame in scan_frames(path.read_bytes()):
        assert isinstance(frame, Frame), f"{path} is damaged to begin with: {frame}"
        inserted = JournalRecord.FromString(bytes(frame.meta)).inserted
        keys = range(inserted.first_key, inserted.first_key + inserted.num_keys)
        found.append(FrameAt(frame.offset, frame.offset + frame.length, keys))
    return found


def copy_of(directory: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(directory, to))
