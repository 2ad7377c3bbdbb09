"""The guard: a tiny process that outlives `shoal train` by a moment and leaves nothing running.

It leads the process group that all services of a run join, and waits for the end of a pipe whose other end
only `shoal train` holds. However that program ends, even by `kill -9`, the pipe ends too: the guard then
removes the run's private socket directory and kills the group, itself included. It also holds
the run directory's lock, which is thus released only when the last service is gone.

Standard library only: `Guard` runs this file with `python -I -S`, which starts in about 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Guard:
    """Handle of the guard process; owned by the supervisor. Create it before any service."""

    def __init__(self, directory: Path, lock_fd: int) -> None:
        read_end, self._write_end = os.pipe()
        command = [sys.executable, "-I", "-S", __file__, str(read_end), str(directory)]
        try:
            # A group of its own: Ctrl-C in the terminal reaches `shoal train` alone, which then drains.
            self._process = subprocess.Popen(
                command,
                process_group=0,
                pass_fds=(read_end, lock_fd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(read_end)

    @property
    def group(self) -> int:
        """The process group that services must join."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill_group(self) -> None:
        """Kills every process of the run at once, the guard too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)

    def close(self) -> None:
        """Lets the guard clear up. When it is gone, all that was left of its group is dying of SIGKILL."""
        if self._write_end < 0:
            return
        os.close(self._write_end)
        self._write_end = -1
        self._process.wait()


def watch(read_end: int, directory: str) -> None:
    """What the guard process does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        while os.read(read_end, 1):
            pass
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
