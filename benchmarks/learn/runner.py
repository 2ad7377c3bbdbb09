"""Runs what is left of the table, one run at a time: each has the whole machine.

A finished run is skipped, an interrupted one goes on from its newest checkpoint, one without a checkpoint
begins anew. A run that fails is reported and the others go on. Ctrl-C stops the current run in good order.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.learn.progress import Progress
from benchmarks.learn.runs import Run, State, Trainer
from benchmarks.learn.scores import greedy_score, read_points
from shoal.cli.charts import duration
from shoal.cli.history import Sample, read_history
from shoal.cli.run_dir import RunDir
from shoal.errors import UserError

POLL_S = 3.0
STOP_TIMEOUT_S = 120.0
LOG_TAIL = 400


@dataclass(frozen=True)
class Failure:
    """A run that did not reach its end, and why, in one line."""

    run: Run
    reason: str


class Runner:
    """`trainers` by system; `done` is called with every finished run, also if it was finished before."""

    def __init__(
        self,
        trainers: Mapping[str, Trainer],
        done: Callable[[Run], None],
        progress: Progress,
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._trainers = trainers
        self._done = done
        self._progress = progress
        self._poll_s = poll_s

    def run_all(self, runs: Sequence[Run]) -> list[Failure]:
        """In order. KeyboardInterrupt passes through once the current run has stopped."""
        failures = []
        for number, run in enumerate(runs, 1):
            position = f"[{number}/{len(runs)}]"
            state = run.state()
            if state is State.FINISHED:
                print(f"{position} {run.label}: finished before", flush=True)
                self._evaluate(run)
                self._done(run)
                continue
            reason = self._run(position, run, state, runs[number:])
            if reason is None:
                self._evaluate(run)
                self._done(run)
                print(f"{position} {run.label}: {_reached(run)}", flush=True)
            else:
                failures.append(Failure(run, reason))
                print(f"{position} {run.label}: FAILED: {reason}", flush=True)
        return failures

    def _run(self, position: str, run: Run, state: State, waiting: Sequence[Run]) -> str | None:
        """Why it failed, or None."""
        print(f"{position} {run.label}: {'goes on' if state is State.RESUMABLE else 'starts'}", flush=True)
        try:
            if state is State.NEW:
                run.clear()
            code = self._execute(position, run, state, waiting)
        except (OSError, UserError) as error:
            return str(error)
        finally:
            self._progress.clear()
        if run.state() is State.FINISHED and read_points(run.root):
            return None
        return f"exit code {code}: {_last_words(run)} (log: {run.log})"

    def _evaluate(self, run: Run) -> None:
        """Once. A run that cannot be evaluated is still a run: its cell stays empty, the log says why."""
        command = self._trainers[run.system].evaluation(run)
        if command is None or greedy_score(run.root) is not None:
            return
        with run.log.open("ab") as log:
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                print(f"{run.label}: not evaluated (log: {run.log})", flush=True)

    def _execute(self, position: str, run: Run, state: State, waiting: Sequence[Run]) -> int:
        run.root.parent.mkdir(parents=True, exist_ok=True)
        command = self._trainers[run.system].command(run, state)
        with run.log.open("ab") as log:
            # A session of its own: Ctrl-C comes here, and from here to the run.
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._progress.start()
        try:
            while True:
                try:
                    return process.wait(self._poll_s)
                except subprocess.TimeoutExpired:
                    self._progress.show(position, run, _newest(run), waiting)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """In good order, with a checkpoint; at once if that takes too long or is asked for a second time."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        # A second time kills everything at once.
        process.send_signal(signal.SIGINT)
        process.wait()


def _newest(run: Run) -> Sample | None:
    samples, _ = read_history(RunDir(run.root).history)
    return samples[-1] if samples else None


def _reached(run: Run) -> str:
    last = read_points(run.root)[-1]
    return f"return {last.mean:,.1f} after {last.steps:,} steps and {duration(last.seconds)}"


def _last_words(run: Run) -> str:
    text = run.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
