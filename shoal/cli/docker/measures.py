"""What Prometheus knows of a stretch of time: the learner's speed, the actors' steps, the policy lag.

Counters are added up from the samples themselves, so that a process that starts again, and counts from zero,
neither hides nor invents anything. Called from one thread; blocking.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.cli.docker.prometheus import Series
from shoal.cli.docker.spot import OpenSteps
from shoal.errors import UserError

LEARNER_STEPS = "shoal_learner_env_steps_total"
ACTOR_STEPS = 'shoal_actor_env_steps_total{mode="train"}'
LAG_MEAN = "shoal_learner_policy_lag_mean"
LAG_P95 = "shoal_learner_policy_lag_p95"
OPEN_STEPS = "shoal_actor_open_steps"


class Server(Protocol):
    """What `shoal.cli.docker.prometheus.Prometheus` gives."""

    address: str

    def now(self, query: str) -> list[Series]: ...

    def between(self, selector: str, start: float, end: float) -> list[Series]: ...


@dataclass(frozen=True)
class Window:
    """A stretch of time. Rates are per second, lags in versions; None is what Prometheus does not know."""

    seconds: float
    learner_steps_per_s: float
    actor_steps_per_s: float | None
    lag_mean: float | None
    lag_p95: float | None

    @property
    def collected_steps(self) -> float | None:
        """By actors."""
        return None if self.actor_steps_per_s is None else self.actor_steps_per_s * self.seconds


def measure(server: Server, start: float, end: float) -> Window:
    """Raises UserError if Prometheus has too little of the learner to tell a speed."""
    learner = server.between(LEARNER_STEPS, start, end)
    speed = rate(learner)
    if speed is None:
        num_samples = sum(len(series.samples) for series in learner)
        raise UserError(
            f"Prometheus at {server.address} has {num_samples} samples of {LEARNER_STEPS} from "
            f"{end - start:.0f} s: is the learner training, and scraped? measure for longer"
        )
    return Window(
        seconds=end - start,
        learner_steps_per_s=speed,
        actor_steps_per_s=rate(server.between(ACTOR_STEPS, start, end)),
        lag_mean=mean(server.between(LAG_MEAN, start, end)),
        lag_p95=mean(server.between(LAG_P95, start, end)),
    )


def rate(found: Sequence[Series]) -> float | None:
    """Growth per second of all series together, from the first sample to the last; None without two."""
    if not found:
        return None
    start, end = _first_time(found), max(series.samples[-1][0] for series in found)
    if end <= start:
        return None
    return sum(growth(series, start) for series in found) / (end - start)


def growth(series: Series, start: float) -> float:
    """By how much a counter grew. One that falls was set back to zero; one that begins late began at zero."""
    values = [value for _, value in series.samples]
    grown = sum(after - before if after >= before else after for before, after in itertools.pairwise(values))
    return grown + (values[0] if _begins_late(series, start) else 0.0)


def _begins_late(series: Series, start: float) -> bool:
    """Whether it was not there yet when the others were: two scrapes' time is no coincidence."""
    times = [time for time, _ in series.samples]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return times[0] - start > 2 * min(gaps) if gaps else False


def _first_time(found: Sequence[Series]) -> float:
    return min(series.samples[0][0] for series in found)


def mean(found: Sequence[Series]) -> float | None:
    values = [value for series in found for _, value in series.samples if value == value]
    return sum(values) / len(values) if values else None


def open_steps(found: Sequence[Series]) -> dict[str, OpenSteps]:
    """Newest figures by the host of `instance`: an address in the project's network."""
    hosts: dict[str, dict[str, float]] = {}
    for series in found:
        host = series.labels.get("instance", "").rpartition(":")[0]
        hosts.setdefault(host, {})[series.labels.get("state", "")] = series.last
    return {
        host: OpenSteps(states.get("recording", 0.0), states.get("unacked", 0.0))
        for host, states in hosts.items()
    }
