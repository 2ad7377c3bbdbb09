"""Virtual environments of other systems, to be measured beside shoal: made once, in the benchmark's cache.

Nothing of them becomes a dependency of shoal, and what they need cannot collide with what shoal needs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
# torch first: whatever depends on it then takes the one that is there.
SB3 = (("torch==2.13.0",), ("stable-baselines3==2.9.2", "gymnasium[mujoco]"))


class PeerMissingError(Exception):
    """Why a system cannot run here, in one line."""


def install_sb3(cache: Path) -> str:
    """The interpreter that has Stable-Baselines3."""
    given = [("--constraint", str(CONSTRAINTS), *requirements) for requirements in SB3]
    venv = cache.resolve() / "sb3-venv"
    return install("Stable-Baselines3", venv, sys.executable, given, "stable_baselines3")


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
