"""The replay program with one protection switched off, on a disk that can be told to fail, or with a probe.

`python -m tests.chaos.rigged <what>[:<path>] --set ...` is `python -m services.replay --set ...` otherwise.
The controls run it: a test that cannot tell the two apart tests nothing.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import services.replay.__main__ as program
from services.replay import stored_table
from services.replay.dedup import Claim, Dedup
from services.replay.shard import Shard
from services.replay.storage.files import RealFiles
from shoal.config import Config
from shoal.records import Life
from shoal.rpc.process import ServiceContext, run_service

PROBE_EVERY_S = 0.002


@dataclass
class Pauses:
    """The longest of each since the start (s)."""

    # Of the event loop.
    loop_s: float = 0.0
    # The same less what it waited for a CPU.
    own_s: float = 0.0
    # Of a garbage collection: part of the above.
    collection_s: float = 0.0

    def forget(self) -> None:
        self.loop_s = self.own_s = self.collection_s = 0.0


class Forgetful(Dedup):
    """Every append is new."""

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int) -> None:
        return None


def without_dedup(_path: Path) -> None:
    setattr(program, Shard.__name__, partial(Shard, make_dedup=Forgetful))


def with_probe(path: Path) -> None:
    """Writes `Pauses` to a file; begins anew when the file is gone."""
    main = program.main

    async def probed(config: Config, context: ServiceContext) -> None:
        probing = asyncio.get_running_loop().create_task(_probe(path))
        try:
            await main(config, context)
        finally:
            probing.cancel()

    program.main = probed


async def _probe(path: Path) -> None:
    schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    longest = Pauses()
    collecting_since = 0.0

    def on_collection(phase: str, _info: dict[str, int]) -> None:
        nonlocal collecting_since
        if phase == "start":
            collecting_since = time.monotonic()
        else:
            longest.collection_s = max(longest.collection_s, time.monotonic() - collecting_since)

    gc.callbacks.append(on_collection)
    while True:
        started, waited_s = time.monotonic(), _waited_for_cpu_s(schedstat)
        await asyncio.sleep(PROBE_EVERY_S)
        pause_s = time.monotonic() - started - PROBE_EVERY_S
        own_s = pause_s - (_waited_for_cpu_s(schedstat) - waited_s)
        if not _is_there(path):
            longest.forget()
        if pause_s > longest.loop_s or own_s > longest.own_s:
            longest.loop_s, longest.own_s = max(longest.loop_s, pause_s), max(longest.own_s, own_s)
            _write(path, longest)


def _is_there(path: Path) -> bool:
    return path.exists()


def _write(path: Path, pauses: Pauses) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(pauses)))
    temporary.replace(path)


def _waited_for_cpu_s(schedstat: Path) -> float:
    """Time that the thread was ready to run and another one had the CPU."""
    return int(schedstat.read_text().split()[1]) / 1e9


class TroubledFiles(RealFiles):
    """Does what a file says: `read-only`, or `slow` and how long a write takes (s)."""

    says: Path

    def create(self, path: Path) -> int:
        self._obey()
        return super().create(path)

    def append(self, descriptor: int, buffers: Sequence[bytes]) -> None:
        self._obey()
        super().append(descriptor, buffers)

    def truncate(self, descriptor: int, size: int) -> None:
        self._obey()
        super().truncate(descriptor, size)

    def rename(self, old: Path, new: Path) -> None:
        self._obey()
        super().rename(old, new)

    def delete(self, path: Path) -> None:
        self._obey()
        super().delete(path)

    def _obey(self) -> None:
        try:
            order, *seconds = self.says.read_text().split()
        except FileNotFoundError:
            return
        if order == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        time.sleep(float(seconds[0]))


def with_troubled_disk(path: Path) -> None:
    TroubledFiles.says = path
    setattr(stored_table, RealFiles.__name__, TroubledFiles)


RIGS: dict[str, Callable[[Path], None]] = {
    "no-dedup": without_dedup,
    "probe": with_probe,
    "disk": with_troubled_disk,
}


if __name__ == "__main__":
    rig, _, where = sys.argv.pop(1).partition(":")
    RIGS[rig](Path(where))
    run_service("replay", program.main)
