"""P1: trained env steps per second on CartPole, four processes over gRPC, and where the CPU time goes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.local_run import SERVICES, LocalRun, run_train
from benchmarks.single_process import single_process_rate

TARGET_STEPS_PER_S = 300_000


@dataclass(frozen=True)
class Settings:
    """What P1 is measured with."""

    envs_per_message: int
    groups: int = 4
    unroll_length: int = 20
    warm_up_s: float = 5.0
    measure_s: float = 20.0

    def arguments(self) -> list[str]:
        values = {
            "actor.groups": self.groups,
            "actor.unroll_length": self.unroll_length,
            "learner.batch_envs": self.envs_per_message,
            "learner.checkpoint_every_s": 3600,
            "policy.hidden_sizes": "[64, 64]",
        }
        minutes = (self.warm_up_s + self.measure_s + 6) / 60
        flags = ["CartPole-v1", "--envs-per-actor", str(self.envs_per_message * self.groups)]
        flags += ["--minutes", f"{minutes:.3f}"]
        for key, value in values.items():
            flags += ["--set", f"{key}={value}"]
        return flags


def measure(settings: Settings, directory: Path) -> float:
    """Print P1 for these settings with its profile; return the rate."""
    name = f"p1-{settings.envs_per_message}"
    run = run_train(settings.arguments(), directory / name, settings.warm_up_s)
    rate = steady_rate(run, settings.warm_up_s)
    reference = single_process_rate(
        num_envs=settings.envs_per_message * settings.groups,
        unroll_length=settings.unroll_length,
        seconds=settings.measure_s / 2,
    )
    envs = f"{settings.groups} groups x {settings.envs_per_message} envs"
    print(f"\nP1  CartPole-v1, IMPALA, MLP 64x64, 1 actor x {envs}, T={settings.unroll_length}")
    print(f"    {rate:,.0f} trained env steps/s (target {TARGET_STEPS_PER_S:,})")
    print(f"    {rate / reference:.2f} of a single-process loop with as many envs ({reference:,.0f} steps/s)")
    _print_profile(run, rate)
    return rate


def steady_rate(run: LocalRun, warm_up_s: float) -> float:
    """Steps trained per second from the end of the warm-up to the last sample."""
    trained = [sample for sample in run.samples if sample.env_steps]
    steady = [sample for sample in trained if sample.time_s >= trained[0].time_s + warm_up_s]
    if len(steady) < 2:
        raise RuntimeError(f"the run was too short to measure: {len(steady)} samples after the warm-up")
    first, last = steady[0], steady[-1]
    return ((last.env_steps or 0) - (first.env_steps or 0)) / (last.time_s - first.time_s)


def _print_profile(run: LocalRun, rate: float) -> None:
    """CPU time of one env step by service, then the time breakdown that the services report themselves."""
    num_steps = rate * run.window_s
    total = sum(run.cpu_s.values())
    print(f"    CPU per trained env step: {total / num_steps * 1e6:.2f} us, of which")
    for name in SERVICES:
        cpu_s = run.cpu_s.get(name, 0.0)
        share = cpu_s / run.window_s
        print(f"      {name:<10} {cpu_s / num_steps * 1e6:6.2f} us  ({share:4.0%} of a core)")
        print(f"        {_phases(run, name)}")
    waiting = [s.learner_waiting for s in run.samples if s.learner_waiting is not None]
    idle = statistics.median(waiting) if waiting else 0.0
    print(f"    next bottleneck: {_bottleneck(run.cpu_s, idle)}")


def _bottleneck(cpu_s: dict[str, float], learner_waiting: float) -> str:
    """Whoever has to become cheaper next, by what the learner does with its time."""
    if learner_waiting < 0.1:
        return f"training; the learner waits for data {learner_waiting:.0%} of its time"
    busiest = max(("actor", "inference"), key=lambda name: cpu_s.get(name, 0.0))
    return (
        f"acting; the learner waits for data {learner_waiting:.0%} of its time, and {busiest} uses the most "
        "CPU of those that act: more envs per message make each step cheaper"
    )


def _phases(run: LocalRun, service: str) -> str:
    """Shares of the seconds that the service's phases gained over the run."""
    samples = [sample for sample in run.samples if sample.phases.get(service)]
    if not samples:
        return "no time breakdown"
    seconds = samples[-1].phases[service]
    total = sum(seconds.values()) or 1.0
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{phase} {value / total:.0%}" for phase, value in shares)
