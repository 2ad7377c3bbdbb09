"""P1: trained env steps per second on CartPole, four processes over gRPC, and where the CPU time goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.console import verdict
from benchmarks.local_run import flags, measure_train
from benchmarks.single_process import single_process_rate
from benchmarks.usage import LAUNCHER, Window

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
        num_envs = self.envs_per_message * self.groups
        return ["CartPole-v1", "--envs-per-actor", str(num_envs), *flags(values)]


def measure(settings: Settings, directory: Path) -> float:
    """Print P1 for these settings with its profile; return the rate."""
    window = measure_train(
        settings.arguments(),
        directory / f"p1-{settings.envs_per_message}",
        warm_up_s=settings.warm_up_s,
        measure_s=settings.measure_s,
    )
    reference = single_process_rate(
        num_envs=settings.envs_per_message * settings.groups,
        unroll_length=settings.unroll_length,
        seconds=settings.measure_s / 2,
    )
    rate = window.trained_rate
    envs = f"{settings.groups} groups x {settings.envs_per_message} envs"
    print(f"\nP1  CartPole-v1, IMPALA, MLP 64x64, 1 actor x {envs}, T={settings.unroll_length}")
    print(f"    {rate:,.0f} trained env steps/s ({verdict(rate, TARGET_STEPS_PER_S)})")
    print(
        f"    {rate / reference:.2f} of a single-process loop with as many envs ({reference:,.0f} steps/s; "
        f"{verdict(rate / reference, 1.0)})"
    )
    _print_profile(window)
    return rate


def _print_profile(window: Window) -> None:
    """CPU time of one env step by service, then the time breakdown that the services report themselves."""
    per_step = {role: 1e6 * used / window.trained_steps for role, used in window.cpu_s.items()}
    print(f"    CPU per trained env step: {sum(per_step.values()):.2f} us, of which")
    for role, microseconds in per_step.items():
        share = window.cpu_s[role] / window.seconds
        print(f"      {role:<10} {microseconds:6.2f} us  ({share:4.0%} of a core)")
        if role != LAUNCHER:
            print(f"        {_phases(window, role)}")
    waiting = window.phases("learner").get("wait", 0.0) / window.seconds
    print(f"    next bottleneck: {_bottleneck(window.cpu_s, waiting)}")


def _bottleneck(cpu_s: dict[str, float], learner_waiting: float) -> str:
    """Whoever has to become cheaper next, by what the learner does with its time."""
    if learner_waiting < 0.1:
        return f"training; the learner waits for data {learner_waiting:.0%} of its time"
    busiest = max(("actor", "inference"), key=lambda name: cpu_s.get(name, 0.0))
    return (
        f"acting; the learner waits for data {learner_waiting:.0%} of its time, and {busiest} uses the most "
        "CPU of those that act: more envs per message make each step cheaper"
    )


def _phases(window: Window, role: str) -> str:
    """Shares of the seconds that the service's phases gained."""
    seconds = window.phases(role)
    total = sum(seconds.values()) or 1.0
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{phase} {value / total:.0%}" for phase, value in shares) or "no time breakdown"
