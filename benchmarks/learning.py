"""P3 and P10: from `shoal train cartpole` to a mean return of 475, and to the first trained batch."""

from __future__ import annotations

from pathlib import Path

from benchmarks.console import verdict
from benchmarks.local_run import run_train

P3_TARGET_S = 15.0
P10_TARGET_S = 6.0


def measure(directory: Path, num_runs: int) -> None:
    """Print both figures for several seeds: start-up, learning and shutdown are all in the wall-clock."""
    print("\nP3  `shoal train cartpole --until-return 475`, and P10, time to the first trained batch")
    for seed in range(1, num_runs + 1):
        arguments = ["cartpole", "--until-return", "475", "--seed", str(seed), "--minutes", "5"]
        run = run_train(arguments, directory / f"p3-{seed}")
        trained = [sample for sample in run.samples if sample.env_steps]
        reached = run.samples[-1].episode_return if run.samples else None
        steps = trained[-1].env_steps if trained else 0
        first_s = trained[0].time_s if trained else float("inf")
        p3 = verdict(run.wall_clock_s, P3_TARGET_S, at_most=True)
        p10 = verdict(first_s, P10_TARGET_S, at_most=True)
        print(
            f"    seed {seed}: {run.wall_clock_s:.1f} s ({p3}), {steps:,} env steps, "
            f"return {reached or 0:.0f}, exit code {run.exit_code}; "
            f"first trained batch after {first_s:.1f} s ({p10})"
        )
