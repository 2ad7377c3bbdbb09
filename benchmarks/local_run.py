"""Runs `shoal train` as a user would and reads what it wrote, with the CPU time of each service.

The run is a real one: separate processes, real gRPC. CPU times come from the operating system.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.cli.history import Sample, read_history

SERVICES = ("actor", "inference", "replay", "learner")


@dataclass(frozen=True)
class LocalRun:
    """What a finished run left: its samples, CPU seconds by service over the window, and its length."""

    samples: list[Sample]
    cpu_s: dict[str, float]
    window_s: float
    wall_clock_s: float
    exit_code: int


def run_train(arguments: Sequence[str], run_dir: Path, warm_up_s: float | None = None) -> LocalRun:
    """Run to the end. With `warm_up_s` the CPU window starts so long after the first trained step."""
    command = [sys.executable, "-m", "shoal.cli", "train", *arguments]
    command += ["--plain", "--run-dir", str(run_dir)]
    started = time.monotonic()
    with open(run_dir.with_suffix(".log"), "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        window = _watch(process, run_dir, warm_up_s)
        code = process.wait()
    wall_clock_s = time.monotonic() - started
    samples, _ = read_history(run_dir / "history.jsonl")
    return LocalRun(samples, window[0], window[1], wall_clock_s, code)


def _watch(
    process: subprocess.Popen[bytes], run_dir: Path, warm_up_s: float | None
) -> tuple[dict[str, float], float]:
    """CPU seconds by service between the end of the warm-up and the last moment all were alive."""
    begin: tuple[float, dict[str, float]] | None = None
    end: tuple[float, dict[str, float]] | None = None
    trained_since: float | None = None
    while process.poll() is None:
        now = time.monotonic()
        used = _cpu_by_service(process.pid)
        if trained_since is None and _has_trained(run_dir):
            trained_since = now
        if trained_since is not None and now - trained_since >= (warm_up_s or 0.0):
            if begin is None:
                begin = (now, used)
            if set(used) == set(begin[1]):
                end = (now, used)
        time.sleep(0.5)
    if begin is None or end is None:
        return {}, 0.0
    return {name: end[1][name] - begin[1][name] for name in begin[1]}, end[0] - begin[0]


def _has_trained(run_dir: Path) -> bool:
    samples, _ = read_history(run_dir / "history.jsonl")
    return any(sample.env_steps for sample in samples)


def _cpu_by_service(pid: int) -> dict[str, float]:
    used: dict[str, float] = defaultdict(float)
    for child in psutil.Process(pid).children(recursive=True):
        try:
            words = child.cmdline()
            times = child.cpu_times()
        except psutil.Error:
            continue
        for name in SERVICES:
            if f"services.{name}" in words:
                used[name] += times.user + times.system
    return dict(used)
