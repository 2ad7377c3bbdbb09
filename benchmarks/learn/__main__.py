"""The learning table, from the command line.

    python -m benchmarks.learn                                  everything: days on two cores
    python -m benchmarks.learn --only 'cartpole-v1*' acrobot-v1  some rows
    python -m benchmarks.learn --list                           the rows, and which runs are finished
    python -m benchmarks.learn --page                           docs/results/learning.md from its JSON files

Start it again to go on after Ctrl-C, a crash or a reboot: what is finished in --dir is skipped.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.console import print_table
from benchmarks.learn.page import table, write_page
from benchmarks.learn.progress import Pace, Progress
from benchmarks.learn.records import ROOT, add_run, read_record
from benchmarks.learn.runner import Failure, Runner
from benchmarks.learn.runs import SB3, SHOAL, Run, ShoalTrain, State, Trainer, planned
from benchmarks.learn.sb3 import Sb3Train
from benchmarks.learn.tasks import TASKS, Task, selected
from benchmarks.machine import describe_machine
from benchmarks.peer_venv import PeerMissingError, install_sb3

PAGE = ROOT / "docs/results/learning.md"
RESULTS = ROOT / "docs/results/learning"
CACHE = Path(".bench")
QUICK_STEPS = 5000
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    try:
        tasks = selected(given.only, TASKS)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if given.page:
        write_page(PAGE, RESULTS, TASKS)
        return 0
    directory = given.dir / "quick" if given.quick else given.dir
    runs = planned(tasks, given.seeds, directory, max_steps=QUICK_STEPS if given.quick else None)
    runs = [run for run in runs if run.system == SHOAL or not given.no_sb3]
    if given.list:
        _list(tasks, runs)
        return 0
    print(describe_machine(), flush=True)
    results = directory / "results" if given.quick else RESULTS
    try:
        failures = _run(runs, results)
    except KeyboardInterrupt:
        command = shlex.join([sys.executable, "-m", "benchmarks.learn", *(argv or sys.argv[1:])])
        print(f"\nstopped; to go on: {command}", flush=True)
        return INTERRUPTED
    if given.quick:
        print("\n".join(table(tasks, [read_record(results, task) for task in tasks], results.name)))
    return _summary(failures, len(runs))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="rows, such as '*-sac'")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="1 to N (5)")
    parser.add_argument("--dir", type=Path, default=CACHE / "learn", help="run directories (%(default)s)")
    parser.add_argument(
        "--no-sb3", action="store_true", help="without Stable-Baselines3 beside the quick rows"
    )
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    parser.add_argument("--page", action="store_true", help="only rewrite the page from its JSON files")
    parser.add_argument(
        "--quick", action="store_true", help="a few thousand steps a run, to see whether it works; not kept"
    )
    return parser.parse_args(argv)


def _run(runs: Sequence[Run], results: Path) -> list[Failure]:
    trainers: dict[str, Trainer] = {SHOAL: ShoalTrain()}
    if any(run.system == SB3 for run in runs):
        try:
            trainers[SB3] = Sb3Train(install_sb3(CACHE))
        except PeerMissingError as error:
            print(f"without Stable-Baselines3: {error}", flush=True)

    def done(run: Run) -> None:
        add_run(results, run)
        if results == RESULTS:
            write_page(PAGE, RESULTS, TASKS)

    signal.signal(signal.SIGTERM, _interrupt)
    return Runner(trainers, done, Progress(Pace())).run_all([run for run in runs if run.system in trainers])


def _interrupt(*_: object) -> NoReturn:
    """SIGTERM ends the table as Ctrl-C does."""
    raise KeyboardInterrupt


def _list(tasks: Sequence[Task], runs: Sequence[Run]) -> None:
    rows = []
    for task in tasks:
        for system in (SHOAL, SB3):
            own = [run for run in runs if run.task is task and run.system == system]
            if own:
                finished = sum(run.state() is State.FINISHED for run in own)
                command = shlex.join(["shoal", "train", *task.arguments]) if system == SHOAL else ""
                rows.append([task.name, system, f"{own[0].steps:,}", f"{finished} of {len(own)}", command])
    print_table("Rows", ["name", "system", "steps", "finished", "command"], rows)


def _summary(failures: Sequence[Failure], total: int) -> int:
    if failures:
        print(f"\n{len(failures)} of {total} runs failed:")
        for failure in failures:
            print(f"  {failure.run.label}: {failure.reason}")
        return 1
    print(f"\nall {total} runs are finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
