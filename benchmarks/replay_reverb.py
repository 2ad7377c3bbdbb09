"""Reverb beside shoal in the same run: installs it where shoal's packages are not, and drives its side.

Reverb needs TensorFlow and an older protobuf, so it lives in a virtual environment of its own, made once in
the benchmark's cache directory. Where it does not install, `start_reverb` says why in one line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_venv import PeerMissingError, install
from shoal.records import Columns

SIDE = Path(__file__).with_name("replay_reverb_side.py")
REQUIREMENTS = ("dm-reverb[tensorflow]==0.14.0", "tensorflow~=2.15.0")
# The newest Python that Reverb 0.14 has wheels for.
PYTHON = "python3.11"
START_TIMEOUT_S = 120.0


class ReverbSide:
    """A Reverb server and a client of it, each a process."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        self._driver = driver

    def run(self, action: str, kind: str, way: str, seconds: float) -> tuple[float, float]:
        """Items/s and MB/s of `insert` or `sample`; the way is `steps` or `whole`, see the side's script."""
        assert self._driver.stdin is not None
        self._driver.stdin.write(f"{action} {kind} {way} {seconds}\n")
        self._driver.stdin.flush()
        answer = _read_line(self._driver, seconds + START_TIMEOUT_S)
        return float(answer["items_per_s"]), float(answer["mb_per_s"])


@contextmanager
def start_reverb(
    cache: Path, directory: Path, items: dict[str, Sequence[Columns]]
) -> Iterator[ReverbSide | str]:
    """Yields the running side, or the reason why there is none. `items`: what is inserted, by kind."""
    processes: list[subprocess.Popen[str]] = []
    try:
        side: ReverbSide | str = _start_side(cache, directory, items, processes)
    except PeerMissingError as error:
        side = str(error)
    try:
        yield side
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start_side(
    cache: Path,
    directory: Path,
    items: dict[str, Sequence[Columns]],
    processes: list[subprocess.Popen[str]],
) -> ReverbSide:
    python = _install(cache / "reverb-venv")
    arrays = {
        f"{kind}/{number}/{name}": column
        for kind, columns in items.items()
        for number, item in enumerate(columns)
        for name, column in item.items()
    }
    data, log = directory / "reverb-items.npz", directory / "reverb.log"
    np.savez(data, **arrays)
    processes.append(_start([python, str(SIDE), "serve"], log))
    port = str(_read_line(processes[0], START_TIMEOUT_S)["port"])
    processes.append(_start([python, str(SIDE), "drive", port, str(data)], log))
    _read_line(processes[1], START_TIMEOUT_S)
    return ReverbSide(processes[1])


def _install(venv: Path) -> str:
    """The interpreter of a virtual environment that has Reverb."""
    base = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which(PYTHON)
    if base is None:
        raise PeerMissingError(f"Reverb 0.14 needs {PYTHON}, which is not on the PATH")
    return install("Reverb", venv, base, [REQUIREMENTS], "reverb")


def _start(command: list[str], log: Path) -> subprocess.Popen[str]:
    with log.open("a") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )


def _read_line(process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    """The next line of JSON; a process that is silent for too long is killed."""
    assert process.stdout is not None
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    if not line:
        raise PeerMissingError(f"Reverb's process ended or did not answer within {timeout_s:g} s")
    answer: dict[str, Any] = json.loads(line)
    return answer
