"""Virtual environments of other systems, to be measured beside shoal: made once, in the benchmark's cache.

Nothing of them becomes a dependency of shoal, and what they need cannot collide with what shoal needs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


class PeerMissingError(Exception):
    """Why a system cannot run here, in one line."""


def install(name: str, venv: Path, base: str, requirements: Sequence[Sequence[str]], module: str) -> str:
    """The interpreter of a virtual environment that can import `module`.

    `base` is the Python to make it with; each of `requirements` is what one call of pip installs.
    """
    python, stamp = venv / "bin/python", venv / ".installed"
    if stamp.is_file():
        return str(python)
    print(f"installing {name} into a virtual environment of its own, once: a few minutes ...", flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [base, "-m", "venv", "--clear", str(venv)],
        *([*pip, *given] for given in requirements),
        # What installs does not always import.
        [str(python), "-c", f"import {module}"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise PeerMissingError(f"`{' '.join(command[1:5])} ...` failed: {lines[-1]}")
    stamp.touch()
    return str(python)
