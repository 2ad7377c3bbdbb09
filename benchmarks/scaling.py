"""P7: CPU time per env step over all services, with 1 to 32 actors of the same number of environments.

All run on this machine, so more actors share the same cores: what is measured is what a step costs, not how
fast steps are. A cost that grows with the number of actors would be a part that does not scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.console import print_table, rate, verdict
from benchmarks.local_run import flags, measure_train
from benchmarks.usage import Window

TARGET_GROWTH = 0.20
ROLES = ("actor", "inference", "replay", "learner")


@dataclass(frozen=True)
class Settings:
    """What P7 is measured with."""

    num_actors: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    envs_per_actor: int = 128
    groups: int = 2
    unroll_length: int = 20
    warm_up_s: float = 6.0
    measure_s: float = 12.0

    def arguments(self, num_actors: int) -> list[str]:
        values = {
            "actor.groups": self.groups,
            "actor.unroll_length": self.unroll_length,
            "learner.batch_envs": self.envs_per_actor // self.groups,
            "learner.checkpoint_every_s": 3600,
        }
        return [
            "CartPole-v1",
            "--actors",
            str(num_actors),
            "--envs-per-actor",
            str(self.envs_per_actor),
            *flags(values),
        ]


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU per trained env step, by role."""

    num_actors: int
    steps_per_s: float
    rows_per_pass: float
    by_role: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.by_role.values())


def cost_of(num_actors: int, window: Window) -> Cost:
    used, steps = window.cpu_s, window.trained_steps
    rows = window.grown("inference", "shoal_inference_rows_total")
    passes = window.grown("inference", "shoal_inference_batches_total")
    by_role = {role: used.get(role, 0.0) / steps * 1e6 for role in ROLES}
    return Cost(num_actors, window.trained_rate, rows / (passes or 1), by_role)


def measure(settings: Settings, directory: Path) -> None:
    """Print P7."""
    costs = []
    for number in settings.num_actors:
        window = measure_train(
            settings.arguments(number),
            directory / f"p7-{number}",
            warm_up_s=settings.warm_up_s,
            measure_s=settings.measure_s,
        )
        costs.append(cost_of(number, window))
    print_costs(costs, settings)


def print_costs(costs: list[Cost], settings: Settings) -> None:
    first = costs[0].total
    rows = [
        [
            str(cost.num_actors),
            rate(cost.steps_per_s),
            f"{cost.rows_per_pass:.0f}",
            *(f"{cost.by_role[role]:.2f}" for role in ROLES),
            f"{cost.total:.2f}",
            f"{cost.total / first - 1:+.0%}",
        ]
        for cost in costs
    ]
    worst = max(cost.total for cost in costs) / first - 1
    envs = f"{settings.groups} groups x {settings.envs_per_actor // settings.groups} envs per actor"
    print_table(
        f"P7  CPU per trained env step, us: CartPole-v1, IMPALA, MLP 64x64, {envs}",
        ["actors", "steps/s", "rows a pass", *ROLES, "all", "growth"],
        rows,
        [f"largest growth {worst:+.0%} ({verdict(100 * worst, 100 * TARGET_GROWTH, at_most=True)} %)"],
    )
