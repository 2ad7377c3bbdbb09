"""Starting the programs of `rpc_child` and waiting for them, for the tests of `shoal.rpc`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@contextmanager
def child(mode: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running program; killed at the end if it still is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.rpc_child", mode, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def announced(process: subprocess.Popen[str], path: Path) -> dict[str, Any]:
    """Wait until the process has written its announce file."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"exited with {process.returncode}: {process.communicate()[1]}")
        if path.exists():
            record: dict[str, Any] = json.loads(path.read_text())
            if record["pid"] == process.pid:
                return record
        time.sleep(0.02)
    raise AssertionError("the process did not announce itself")


def wait_frozen(process: subprocess.Popen[str]) -> None:
    """Stop the process with SIGSTOP and wait until the kernel says so."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
