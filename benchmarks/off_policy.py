"""P12: updates/s of SAC and TD3 on HalfCheetah-v5, against bare torch and against Stable-Baselines3.

A run of shoal is a real one, all services as processes of their own, an update of 256 transitions for every
environment step. Stable-Baselines3 does the same in one process. Bare torch only computes, on made-up
transitions. All take turns, with one thread and with all cores, and ratios are of one round: speeds of a
shared machine change within minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compute_limit import KEEP_MEMORY
from benchmarks.console import print_table, verdict
from benchmarks.local_run import flags, measure_train
from benchmarks.peer_venv import PeerMissingError, install_sb3
from benchmarks.usage import Window

SHARE_TARGET, SB3_TARGET = 0.8, 1.3
STEPS = "shoal_learner_steps_total"
SIDE = Path(__file__).with_name("sb3_side.py")


@dataclass(frozen=True)
class Settings:
    """What P12 is measured with."""

    algorithms: tuple[str, ...] = ("sac", "td3")
    num_rounds: int = 3
    warm_up_s: float = 8.0
    measure_s: float = 20.0
    limit_s: float = 4.0
    sb3_s: float = 12.0
    num_cores: int = len(os.sched_getaffinity(0))
    cache: Path = Path(".bench")

    def threads(self) -> tuple[int, ...]:
        return tuple(sorted({1, self.num_cores}))

    def arguments(self, algorithm: str) -> list[str]:
        values = {"replay.tables.train.min_items": 1000, "learner.checkpoint_every_s": 3600}
        return [f"{algorithm}_halfcheetah", *flags(values)]


@dataclass(frozen=True)
class Round:
    """Updates/s; of the others by their number of threads."""

    shoal: float
    bare: dict[int, float]
    sb3: dict[int, float]

    @property
    def share(self) -> float:
        """Of the arithmetic limit."""
        return self.shoal / max(self.bare.values())

    @property
    def against_sb3(self) -> float | None:
        return self.shoal / max(self.sb3.values()) if self.sb3 else None


def measure(settings: Settings, directory: Path) -> dict[str, list[Round]]:
    """Print P12, with both ratios; return the rounds of each algorithm."""
    try:
        sb3: str | None = install_sb3(settings.cache)
        missing = ""
    except PeerMissingError as error:
        sb3, missing = None, f"without Stable-Baselines3: {error}"
    measured: dict[str, list[Round]] = {}
    for algorithm in settings.algorithms:
        rounds, windows = [], []
        for number in range(settings.num_rounds):
            window = measure_train(
                settings.arguments(algorithm),
                directory / f"p12-{algorithm}-{number}",
                warm_up_s=settings.warm_up_s,
                measure_s=settings.measure_s,
            )
            windows.append(window)
            rounds.append(_round(settings, algorithm, window, sb3))
        measured[algorithm] = rounds
        _print(settings, algorithm, rounds, windows[-1], missing)
    return measured


def _round(settings: Settings, algorithm: str, window: Window, sb3: str | None) -> Round:
    bare, peer = {}, {}
    for threads in settings.threads():
        module = [sys.executable, "-m", "benchmarks.bare_off_policy"]
        bare[threads] = _updates_per_s(module, algorithm, threads, settings.limit_s, KEEP_MEMORY)
        if sb3 is not None:
            peer[threads] = _updates_per_s([sb3, str(SIDE)], algorithm, threads, settings.sb3_s, {})
    return Round(window.grown("learner", STEPS) / window.seconds, bare, peer)


def _updates_per_s(
    program: list[str], algorithm: str, threads: int, seconds: float, environment: dict[str, str]
) -> float:
    done = subprocess.run(
        [*program, algorithm, str(threads), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **environment, "OMP_NUM_THREADS": str(threads)},
    )
    return float(json.loads(done.stdout.splitlines()[-1])["updates_per_s"])


def _print(settings: Settings, algorithm: str, rounds: list[Round], last: Window, missing: str) -> None:
    threads = settings.threads()
    header = ["round", "shoal", *(f"bare torch, {n}" for n in threads)]
    header += [f"SB3, {n}" for n in threads] if rounds[0].sb3 else []
    rows = [
        [
            str(number + 1),
            *(f"{rate:.1f}" for rate in (each.shoal, *each.bare.values(), *each.sb3.values())),
        ]
        for number, each in enumerate(rounds)
    ]
    share = statistics.median(each.share for each in rounds)
    each_share = ", ".join(f"{each.share:.2f}" for each in rounds)
    notes = [f"{share:.2f} of the arithmetic limit ({verdict(share, SHARE_TARGET)}; rounds: {each_share})"]
    ratios = [each.against_sb3 for each in rounds if each.against_sb3 is not None]
    if ratios:
        ratio = statistics.median(ratios)
        notes.append(
            f"{ratio:.2f} times Stable-Baselines3 at its best ({verdict(ratio, SB3_TARGET)}; "
            f"rounds: {', '.join(f'{each:.2f}' for each in ratios)})"
        )
    if missing:
        notes.append(missing)
    updates = last.grown("learner", STEPS)
    used = ", ".join(f"{role} {seconds / updates * 1e3:.2f}" for role, seconds in last.cpu_s.items())
    notes.append(f"CPU of an update of shoal, in ms, in the last round: {used}")
    print_table(
        f"P12  {algorithm.upper()} on HalfCheetah-v5, 256x256, batch 256, {settings.num_cores} cores: "
        "updates/s, by number of threads",
        header,
        rows,
        notes,
    )
