"""Runs `kill_writers.py`, for the tests that look at what its kills have left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

WRITERS = Path(__file__).with_name("kill_writers.py")
ROOT = Path(__file__).parents[3]


def kill_writers(kind: str, directory: Path, rounds: int, seed: int, timeout_s: float) -> dict[str, int]:
    """What it has found."""
    done = subprocess.run(
        [sys.executable, str(WRITERS), kind, str(directory), str(rounds), str(seed)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found
