"""Stable-Baselines3 beside a row, with its defaults, from a virtual environment of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learn.runs import Run, State
from benchmarks.peer_venv import install

SIDE = Path(__file__).with_name("sb3_side.py")
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
# torch first: whatever depends on it then takes the one that is there.
REQUIREMENTS = (("torch==2.13.0",), ("stable-baselines3==2.9.2", "gymnasium[mujoco]"))


@dataclass(frozen=True)
class Sb3Train:
    """The side's script; it has no checkpoints, so an interrupted run begins anew."""

    python: str

    def command(self, run: Run, state: State) -> list[str]:
        assert run.task.sb3 is not None
        kwargs = json.dumps(dict(run.task.kwargs))
        words = [run.task.sb3.algo, run.task.env, kwargs, str(run.steps), str(run.seed), str(run.root)]
        return [self.python, str(SIDE), *words]


def install_sb3(cache: Path) -> str:
    """The interpreter that has it; made once. Raises PeerMissingError with the reason in one line."""
    given = [("--constraint", str(CONSTRAINTS), *requirements) for requirements in REQUIREMENTS]
    return install(
        "Stable-Baselines3", cache.resolve() / "sb3-venv", sys.executable, given, "stable_baselines3"
    )
