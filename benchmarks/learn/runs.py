"""One run of the table: its directory, how far it is, and the command that starts it or goes on with it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from benchmarks.learn.tasks import Task
from shoal.cli.run_dir import RunDir
from shoal.cli.supervisor import End

SHOAL = "shoal"
SB3 = "sb3"


class State(Enum):
    """How far a run is."""

    FINISHED = "finished"
    RESUMABLE = "resumable"
    NEW = "new"


@dataclass(frozen=True)
class Run:
    """A row, a seed, and who trains: shoal, or Stable-Baselines3 beside it."""

    task: Task
    seed: int
    system: str
    steps: int
    root: Path

    @property
    def label(self) -> str:
        system = "" if self.system == SHOAL else f" ({self.system})"
        return f"{self.task.name}{system}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the program prints; beside the run directory, which may be made anew."""
        return self.root.with_name(f"{self.root.name}.log")

    def state(self) -> State:
        run_dir = RunDir(self.root)
        result = run_dir.read_result()
        if result.get("end") == End.FINISHED.value and (result.get("env_steps") or 0) >= self.steps:
            return State.FINISHED
        return State.RESUMABLE if run_dir.has_checkpoints else State.NEW

    def clear(self) -> None:
        """Removes what a run without a checkpoint left. Raises UserError if one is under way in there."""
        if self.root.exists():
            os.close(RunDir(self.root).claim())
            shutil.rmtree(self.root)


class Trainer(Protocol):
    """Builds the command of a run; one per system."""

    def command(self, run: Run, state: State) -> list[str]: ...

    def evaluation(self, run: Run) -> list[str] | None:
        """Plays with what a finished run has learned, without exploring; None if this system cannot."""
        ...


@dataclass(frozen=True)
class ShoalTrain:
    """`shoal train` with defaults."""

    program: Sequence[str] = (sys.executable, "-m", "shoal.cli")

    def command(self, run: Run, state: State) -> list[str]:
        what = ["--resume", str(run.root)]
        if state is not State.RESUMABLE:
            what = [*run.task.arguments, "--seed", str(run.seed), "--run-dir", str(run.root)]
        return [*self.program, "train", *what, "--steps", str(run.steps), "--plain"]

    def evaluation(self, run: Run) -> list[str] | None:
        return [*self.program, "eval", str(run.root)]


def planned(tasks: Iterable[Task], seeds: int, directory: Path, *, max_steps: int | None = None) -> list[Run]:
    """Every run of these rows, row by row; `max_steps` shortens all of them."""
    runs = []
    for task in tasks:
        systems = {SHOAL: task.steps} | ({SB3: task.sb3.steps} if task.sb3 else {})
        for system, steps in systems.items():
            if max_steps is not None:
                steps = min(steps, max_steps)
            home = directory / task.name
            for seed in range(1, seeds + 1):
                runs.append(Run(task, seed, system, steps, home / f"{system}-{seed}"))
    return runs
