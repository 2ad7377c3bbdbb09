"""One supervised process: a real one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil

from shoal.cli.child import Child
from shoal.cli.plan import ProcessSpec

NUM_LIVES = 20
PATIENCE_S = 60.0


def lives(pid: int) -> bool:
    """Whether it has not ended yet. By Python's version another thread or this one collects it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_signal_in_the_moment_of_the_end_does_not_cost_the_exit_code(tmp_path: Path) -> None:
    """A learner that finishes while the run is being stopped has finished."""

    async def main() -> list[int]:
        child = Child(ProcessSpec("learner", 0, tmp_path / "learner-0.json", ()), tmp_path / "learner-0.log")
        codes = []
        for _ in range(NUM_LIVES):
            await child.start([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"], os.environ, 0)
            assert child.pid is not None
            pid = child.pid
            while lives(pid):
                # Many, so that one of them meets the end.
                for _ in range(100):
                    child.send(signal.SIGCONT)
            codes.append(await child.ended())
        return codes

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [3] * NUM_LIVES
