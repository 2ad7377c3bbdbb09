"""What every test gets: a clean environment and a check that it left no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from hypothesis import settings

# Reproducible examples, and no failures because a shared machine was slow for a moment.
settings.register_profile("shoal", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("shoal")

# Must be set before torch is first imported; many small thread pools on few cores only disturb each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A run in the background or under nohup inherits ignored signals, which many tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Helpers of Python's own multiprocessing: one per interpreter, they live as long as it does.
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own SHOAL__ variables must not change a test."""
    for name in list(os.environ):
        if name.startswith("SHOAL__"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    lines = [line for child in left if (line := _running(child)) is not None]
    for child in left:
        if _running(child) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    assert not lines, "the test left processes running: " + "; ".join(lines)


def _running(process: psutil.Process) -> str | None:
    """The command line, or None if the process is over or Python's own."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        line = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return None
    return None if any(name in line for name in _PYTHONS_OWN) else f"{process.pid} {line}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A test of a fault shows its figure even when it passes: whatever it printed."""
    passed = terminalreporter.stats.get("passed", [])
    printed = [report for report in passed if report.when == "call" and report.capstdout.strip()]
    if printed:
        terminalreporter.section("figures of passed tests")
    for report in printed:
        terminalreporter.line(report.nodeid.rpartition("/")[2])
        for line in report.capstdout.strip().splitlines():
            terminalreporter.line(f"    {line}")
