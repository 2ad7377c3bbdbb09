"""How far the table is: one line that is renewed on a terminal, and one a minute in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from benchmarks.learn.runs import Run
from shoal.cli.charts import duration
from shoal.cli.history import Sample

LINE_EVERY_S = 60.0


class Pace:
    """Seconds a step takes, by row and system: seeds are alike, rows differ by up to a thousand times."""

    def __init__(self) -> None:
        self._seconds_per_step: dict[tuple[str, str], float] = {}

    def note(self, run: Run, steps: int, seconds: float) -> None:
        if steps > 0:
            self._seconds_per_step[_kind(run)] = seconds / steps

    def seconds(self, run: Run, steps: int) -> float | None:
        """For so many steps of this run; None if nothing of its kind has run."""
        each = self._seconds_per_step.get(_kind(run))
        return None if each is None else each * steps

    def time_left(self, run: Run, steps_done: int, waiting: Iterable[Run]) -> str:
        """For this run and for those that wait."""
        own = self.seconds(run, max(run.steps - steps_done, 0))
        if own is None:
            return "time left not known yet"
        others = [self.seconds(other, other.steps) for other in waiting]
        known = [seconds for seconds in others if seconds is not None]
        text = f"{duration(own)} left"
        if known:
            text += f", {duration(own + sum(known))} with the runs after it"
        if missing := len(others) - len(known):
            text += f"; {missing} runs after it are not timed yet"
        return text


class Progress:
    """Shows the current run; `number` of `total` starts at 1."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._is_terminal = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._first: tuple[float, int] | None = None

    def start(self) -> None:
        """A run begins, or goes on."""
        self._said_at, self._first = time.monotonic(), None

    def show(self, position: str, run: Run, last: Sample | None, waiting: Iterable[Run]) -> None:
        """As often as you like; `last` is the newest sample of the run's history."""
        now = time.monotonic()
        steps = (last.env_steps if last else None) or 0
        if last is not None and steps:
            # Start-up is left out, and so is what a session before this one did.
            self._first = self._first or (last.time_s, steps)
            self.pace.note(run, steps - self._first[1], last.time_s - self._first[0])
        mean = "-" if last is None or last.episode_return is None else f"{last.episode_return:,.1f}"
        left = self.pace.time_left(run, steps, waiting)
        line = f"{position} {run.label}: return {mean}, {steps:,} of {run.steps:,} steps, {left}"
        if self._is_terminal:
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()
        elif now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            print(line, flush=True)

    def clear(self) -> None:
        """Before anything else is printed."""
        if self._is_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def _kind(run: Run) -> tuple[str, str]:
    return run.task.name, run.system
