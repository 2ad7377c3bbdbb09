"""Runs `shoal train` as a user would: separate processes, real gRPC.

`run_train` runs to the end and reads what was written; `measure_train` looks at a steady stretch of a run
and then stops it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.usage import Usage, Window, observe
from shoal.cli.history import Sample, read_history
from shoal.cli.run_dir import RunDir
from shoal.errors import UnavailableError

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.2
# A learner step may take a second, so a stretch starts and ends with one.
STEP_POLL_S = 0.01
STEP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class FinishedRun:
    """What a run left."""

    samples: list[Sample]
    wall_clock_s: float
    exit_code: int


def flags(values: Mapping[str, object]) -> list[str]:
    """`--set` for each."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def run_train(arguments: Sequence[str], run_dir: Path) -> FinishedRun:
    """Run to the end."""
    started = time.monotonic()
    with _start(arguments, run_dir) as process:
        code = process.wait()
    wall_clock_s = time.monotonic() - started
    samples, _ = read_history(run_dir / "history.jsonl")
    return FinishedRun(samples, wall_clock_s, code)


def measure_train(arguments: Sequence[str], run_dir: Path, *, warm_up_s: float, measure_s: float) -> Window:
    """A stretch of about `measure_s` that starts `warm_up_s` after the first trained batch."""
    with _start(arguments, run_dir) as process:
        run = _Live(process, run_dir)
        run.wait_for_training()
        run.sleep(warm_up_s)
        begin = run.after_next_step()
        run.sleep(measure_s)
        return Window(begin, run.after_next_step())


class _Live:
    """A run that goes on; whatever ends it is an error here."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path) -> None:
        self._process = process
        self._run_dir = run_dir

    def wait_for_training(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._trained_steps():
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing was trained in {START_TIMEOUT_S:g} s: {self._log()}")
            self.sleep(POLL_S)

    def sleep(self, seconds: float) -> None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"the run ended by itself with code {code}: {self._log()}")

    def after_next_step(self) -> Usage:
        """Right after a learner step: steps are then counted with the time that they took."""
        before = self._look()
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while (usage := self._look()).trained_steps == before.trained_steps:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no learner step in {STEP_TIMEOUT_S:g} s: {self._log()}")
            self.sleep(STEP_POLL_S)
        return usage

    def _look(self) -> Usage:
        sockets = Path(RunDir(self._run_dir).sockets.read_text(encoding="utf-8"))
        return observe(self._process.pid, sockets)

    def _trained_steps(self) -> float:
        try:
            return self._look().trained_steps
        except (OSError, ValueError, UnavailableError, psutil.NoSuchProcess):
            # Not all are up yet.
            return 0.0

    def _log(self) -> str:
        return _log_file(self._run_dir).read_text(errors="replace")[-2000:]


def _log_file(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.log")


@contextmanager
def _start(arguments: Sequence[str], run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`shoal train`, stopped in good order at the end if it still runs."""
    command = [sys.executable, "-m", "shoal.cli", "train", *arguments]
    command += ["--plain", "--run-dir", str(run_dir)]
    with _log_file(run_dir).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # A second time kills everything at once.
                process.send_signal(signal.SIGINT)
                process.wait()
