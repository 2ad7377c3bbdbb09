"""Learning curves, and those for TensorBoard, in <run.dir>/tensorboard.

Values come from the training thread; a thread of its own imports TensorBoard's messages when the first ones
arrive (not at start-up) and writes. A full disk costs curves, never training.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Protocol

import crc32c

log = logging.getLogger(__name__)


class Curves(Protocol):
    """Where learning curves go. Nothing that happens there is the training's business."""

    def add(self, env_steps: int, values: dict[str, float]) -> None:
        """Returns at once."""
        ...

    def close(self) -> None:
        """Waits until all is written."""
        ...


class Several:
    """The same curves in several places."""

    def __init__(self, places: Sequence[Curves]) -> None:
        self._places = places

    def add(self, env_steps: int, values: dict[str, float]) -> None:
        for place in self._places:
            place.add(env_steps, values)

    def close(self) -> None:
        for place in self._places:
            place.close()


class Summaries:
    """One event file per life of the learner; the x axis is environment steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="summaries")
        self._file: IO[bytes] | None = None
        self._broken = False

    def add(self, env_steps: int, values: dict[str, float]) -> None:
        """Returns at once."""
        self._pool.submit(self._write, env_steps, time.time(), values)

    def close(self) -> None:
        """Waits until all is written."""
        self._pool.shutdown()
        if self._file is not None:
            self._file.close()

    def _write(self, env_steps: int, wall_time: float, values: dict[str, float]) -> None:
        if self._broken:
            return
        try:
            self._append(env_steps, wall_time, values)
        except Exception as error:
            # Nobody looks at this thread's results, and no curve is worth a run.
            self._broken = True
            log.error("no more TensorBoard events in %s: %r", self._path, error)

    def _append(self, env_steps: int, wall_time: float, values: dict[str, float]) -> None:
        # Only the messages: TensorBoard's own writer would bring in a quarter of a second of imports.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is None:
            self._path.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{int(wall_time)}.{socket.gethostname()}.{os.getpid()}"
            self._file = (self._path / name).open("wb")
            header = Event(wall_time=wall_time, file_version="brain.Event:2")
            self._file.write(_record(header.SerializeToString()))
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        event = Event(wall_time=wall_time, step=env_steps, summary=Summary(value=scalars))
        self._file.write(_record(event.SerializeToString()))
        self._file.flush()


def _record(data: bytes) -> bytes:
    """A record of an event file: the length and its checksum, the data and its checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc: int = crc32c.crc32c(data)
    rotated = (crc >> 15) | (crc << 17)
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)
