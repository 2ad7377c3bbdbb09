"""`shoal` as a real process, and how to find everything that it started, whoever its parent is by now."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from shoal.cli.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[2]
MARK = "SHOAL_TEST_MARK"
# A loaded machine takes long to import torch four times; tests wait for conditions, this only ends a hang.
PATIENCE_S = 110.0
# The same for a whole run.
RUN_PATIENCE_S = 300.0


class ShoalProcess:
    """One run of the command. Every process that it starts inherits a mark in its environment."""

    def __init__(
        self,
        arguments: list[str],
        cwd: Path,
        sockets: Path,
        environment: dict[str, str],
        stdout: int | None = None,
    ) -> None:
        self.sockets = sockets
        self._mark = uuid.uuid4().hex
        self.stdout_file, self.stderr_file = cwd / f"{self._mark}.out", cwd / f"{self._mark}.err"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {MARK: self._mark, "TMPDIR": str(sockets), "PYTHONPATH": path}
        with self.stdout_file.open("wb") as out, self.stderr_file.open("wb") as err:
            self.process = subprocess.Popen(
                # As the installed command: the working directory is not on its path.
                [sys.executable, "-P", "-m", "shoal.cli", *arguments],
                cwd=cwd,
                env=os.environ | own | environment,
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                process_group=0,
            )

    @property
    def stdout(self) -> str:
        return self.stdout_file.read_text()

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()

    def wait(self) -> int:
        return self.process.wait(RUN_PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def running(self) -> dict[int, str]:
        """Command lines of all living processes with the mark, by pid."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = " ".join(process.cmdline())
            except psutil.Error:
                continue
        return found

    def pid_of(self, service: str) -> int:
        """One process of a service, once it is there."""
        found: list[int] = []

        def is_there() -> bool:
            # Looked for once: it may be gone the next moment.
            found.extend(self._find(service))
            return bool(found)

        self.until(is_there, f"a {service} process")
        return found[0]

    def _find(self, service: str) -> list[int]:
        return [pid for pid, line in self.running().items() if f"services.{service}" in line]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition; shows what the command said if it does not come."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s\n{self.stdout}\n{self.stderr}"
            time.sleep(0.05)

    def until_training(self) -> None:
        """Until the learner has trained on something, by its metrics as the view shows them."""
        self.until(lambda: "trained" in self.stdout and self._steps() > 0, "trained step")

    def _steps(self) -> int:
        shown = [
            line.split("steps ")[1].split()[0] for line in self.stdout.splitlines() if "  steps " in line
        ]
        numbers = [int(text.replace(",", "")) for text in shown if text != "-"]
        return max(numbers, default=0)

    def assert_nothing_left(self) -> None:
        """No process, no socket directory. Ending is not instant: waits for it."""
        self.until(lambda: not self.running(), "end of all processes")
        self.until(lambda: not any(self.sockets.iterdir()), "removal of the socket directory")


@contextmanager
def shoal(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None, stdout: int | None = None
) -> Iterator[ShoalProcess]:
    """Starts the command; at the end nothing of it is left, whatever the test found.

    `stdout` is a descriptor to write to instead of the file that `ShoalProcess.stdout` reads.
    """
    # Short, because the paths of unix sockets are: pytest's own directories are too deep.
    sockets = Path(tempfile.mkdtemp(prefix="e2e", dir="/tmp"))
    started = ShoalProcess(list(arguments), cwd, sockets, environment or {}, stdout)
    try:
        yield started
    finally:
        for pid in {started.process.pid, *started.running()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.process.wait()
        shutil.rmtree(sockets, ignore_errors=True)


def trained(cwd: Path, preset: str, *arguments: str) -> dict[str, Any]:
    """The result of a whole run, in `run`, which must end well by itself."""
    with shoal("train", preset, *arguments, "--run-dir", "run", cwd=cwd) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        run.assert_nothing_left()
    result = RunDir(cwd / "run").read_result()
    print(f"{preset}: {result['mean_return']:.2f} after {result['env_steps']:,} steps ({result['reason']})")
    return result
