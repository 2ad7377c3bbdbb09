"""Stable-Baselines3 beside a row, with its defaults, from a virtual environment of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learn.runs import Run, State

SIDE = Path(__file__).with_name("sb3_side.py")


@dataclass(frozen=True)
class Sb3Train:
    """The side's script; it has no checkpoints, so an interrupted run begins anew."""

    python: str

    def command(self, run: Run, state: State) -> list[str]:
        assert run.task.sb3 is not None
        kwargs = json.dumps(dict(run.task.kwargs))
        words = [run.task.sb3.algo, run.task.env, kwargs, str(run.steps), str(run.seed), str(run.root)]
        return [self.python, str(SIDE), *words]

    def evaluation(self, run: Run) -> list[str] | None:
        return None
