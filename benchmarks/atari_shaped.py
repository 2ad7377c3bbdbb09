"""P2: trained env steps per second of an Atari-shaped environment with a Nature CNN, and where the rest goes.

The figure is a share of the compute limit, which is measured before and after every run: speeds of a shared
machine change within minutes. A run is a real one, all services as processes of their own.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import compute_limit
from benchmarks.compute_limit import Limit
from benchmarks.console import print_table, verdict
from benchmarks.frames_env import ENV_ID
from benchmarks.local_run import flags, measure_train
from benchmarks.usage import NOT_OURS, Window, cores_by_use

TARGET = 0.80
REQUIRED = 0.70
# Phases by who spends them. The times of each line add up to the thread's, but for what no phase counts.
THREADS = {
    "inference": {"model thread": ("forward", "copy", "idle"), "event loop": ("decode", "reply")},
    "learner": {"training thread": ("train", "publish", "wait"), "prefetch": ("decode", "copy")},
    "actor": {"groups": ("wait_action", "env_step", "encode", "wait_ack")},
}


@dataclass(frozen=True)
class Settings:
    """What P2 is measured with."""

    envs_per_message: int = 64
    groups: int = 2
    unroll_length: int = 20
    batch_envs: int = 64
    # The bare training time is most of a step's: with fewer threads than cores it would bound the share.
    inference_threads: int = 1
    learner_threads: int = len(os.sched_getaffinity(0))
    num_rounds: int = 2
    warm_up_s: float = 10.0
    measure_s: float = 30.0
    limit_s: float = 2.0

    def arguments(self) -> list[str]:
        values = {
            "actor.groups": self.groups,
            "actor.unroll_length": self.unroll_length,
            # Short, so that acting is soon held back and no core acts on what is never trained.
            "actor.max_unacked_items": 1,
            "replay.tables": '{"train": {"max_items": 2}}',
            "learner.prefetch_items": 1,
            "learner.batch_envs": self.batch_envs,
            "learner.checkpoint_every_s": 3600,
            "learner.threads": self.learner_threads,
            "inference.threads": self.inference_threads,
            "policy.network": "nature_cnn",
            "policy.frame_stack": 4,
        }
        num_envs = self.envs_per_message * self.groups
        env_id = f"benchmarks.frames_env:{ENV_ID}"
        return [env_id, "--envs-per-actor", str(num_envs), *flags(values)]

    def limit(self) -> Limit:
        return compute_limit.measure_limit(
            self.envs_per_message, self.unroll_length, self.batch_envs, self.limit_s
        )

    def describe(self) -> str:
        return (
            f"1 actor x {self.groups} groups x {self.envs_per_message} envs, T={self.unroll_length}, "
            f"batch of {self.batch_envs} unrolls, threads: inference {self.inference_threads}, "
            f"learner {self.learner_threads}"
        )


@dataclass(frozen=True)
class Round:
    """A run, and the limit around it."""

    window: Window
    limit: Limit

    @property
    def share(self) -> float:
        return self.window.trained_rate / self.limit.steps_per_s


def measure(settings: Settings, directory: Path) -> float:
    """Print P2 with its profile; return the share."""
    limits = [settings.limit()]
    rounds: list[Round] = []
    for number in range(settings.num_rounds):
        window = measure_train(
            settings.arguments(),
            directory / f"p2-{number}",
            warm_up_s=settings.warm_up_s,
            measure_s=settings.measure_s,
        )
        limits.append(settings.limit())
        rounds.append(Round(window, _around(limits[-2:])))
    share = statistics.median(each.share for each in rounds)
    print(f"\nP2  Atari-shaped env, IMPALA, Nature CNN, {settings.describe()}")
    for each in rounds:
        print(
            f"    {each.window.trained_rate:,.0f} trained env steps/s, {each.share:.2f} of the compute limit"
        )
    print(f"    {share:.2f} of the compute limit ({verdict(share, TARGET)}; {REQUIRED:g} required)")
    print(f"    limits in turn with the runs: {', '.join(f'{x.steps_per_s:,.0f}' for x in limits)} steps/s")
    print(f"    the last: {limits[-1].describe()}")
    middle = min(rounds, key=lambda each: abs(each.share - share))
    print_cores(middle)
    print_phases(middle.window, settings.groups)
    return share


def _around(limits: list[Limit]) -> Limit:
    return compute_limit.mean(limits, limits[-1].way)


def print_cores(measured: Round) -> None:
    """All core-seconds of the stretch. The first two rows are the figure itself."""
    window, limit = measured.window, measured.limit
    num_ahead = window.grown("inference", "shoal_inference_rows_total") - window.trained_steps
    needed = {
        "inference": {
            "bare forward": window.trained_steps * limit.forward_s,
            # Less than nothing if more was trained than acted.
            "forward of steps that are not trained": num_ahead * limit.forward_s,
        },
        "learner": {"bare training": window.trained_steps * limit.training_s},
    }
    rows = cores_by_use(window, needed)
    total_s = sum(seconds for _, seconds in rows)
    rows.sort(key=lambda row: (not row[0].partition(", ")[2].startswith("bare"), -row[1]))
    print_table(
        "    Where the cores were:",
        ["", "core-seconds", "share", "us per step"],
        [_row(what, seconds, total_s, window.trained_steps) for what, seconds in rows]
        + [_row("all cores", total_s, total_s, window.trained_steps)],
        [
            f"{total_s:.1f} core-seconds in {window.seconds:.1f} s; the two bare rows add up to the figure.",
            f"Of what other programs left: {measured.share / (1 - _foreign(rows) / total_s):.2f}.",
        ],
    )


def _foreign(rows: Sequence[tuple[str, float]]) -> float:
    return sum(seconds for what, seconds in rows if what in NOT_OURS)


def _row(what: str, seconds: float, total_s: float, num_steps: float) -> list[str]:
    return [what, f"{seconds:.2f}", f"{seconds / total_s:.1%}", f"{seconds / num_steps * 1e6:.0f}"]


def print_phases(window: Window, num_groups: int) -> None:
    """The time of each thread by what it does, by the clock: a thread that waits for a core shows here."""
    rows = []
    for role, threads in THREADS.items():
        spent = window.phases(role)
        for thread, names in threads.items():
            num_threads = num_groups if thread == "groups" else 1
            shares = {name: spent.get(name, 0.0) / (num_threads * window.seconds) for name in names}
            text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
            rows.append([f"{role}, {thread}", text])
    print_table("    Where the threads were:", ["", "share of their time"], rows)
    batches = window.grown("inference", "shoal_inference_batches_total")
    if batches:
        num_rows = window.grown("inference", "shoal_inference_rows_total")
        print(f"    {num_rows / batches:.0f} rows in a forward pass")
