"""The vital signs of a run: samples made of the metrics that all processes expose.

Every metric name that the views rely on stands here. Pure over an injected time; the monitor calls `update`
once per poll, on the event loop.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from shoal.cli.history import PhaseSeconds, PolicyFigures, Sample
from shoal.cli.scrape import Counters, Metrics, by_label, by_policy, label, policy_of, total

# What a process is for: the counter of it, and its unit.
WORK = {
    "actor": ("shoal_actor_env_steps_total", "steps"),
    "evaluator": ("shoal_actor_env_steps_total", "steps"),
    "inference": ("shoal_inference_rows_total", "rows"),
    "replay": ("shoal_replay_inserted_total", "items"),
    "learner": ("shoal_learner_trained_steps_total", "steps"),
}
# Waiting times that are counters of their own instead of values of a label `phase`.
WAITS = {
    "shoal_replay_insert_wait_seconds_total": "insert_wait",
    "shoal_replay_sample_wait_seconds_total": "sample_wait",
}
# Rates are means over so long: training comes in rounds, of seconds where it is synchronous.
WINDOW_S = 10.0
CHIEF = "learner-0"
LEARNER_PHASES, LEARNER_WAIT = "shoal_learner_phase_seconds_total", "wait"


@dataclass(frozen=True)
class Reading:
    """The metrics of one process at one poll; `life` is its pid."""

    process: str
    role: str
    life: int
    metrics: Metrics


@dataclass
class _Growth:
    """What counters grew by, over all processes of a role."""

    sums: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    # Seconds that training waited for data, by policy.
    waits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # What each process did, in the unit of WORK.
    work: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, other: _Growth) -> None:
        for key, amount in other.sums.items():
            self.sums[key] += amount
        for policy, seconds in other.waits.items():
            self.waits[policy] += seconds
        for process, amount in other.work.items():
            self.work[process] += amount

    def of(self, role: str, metric: str) -> float:
        return self.sums.get((role, metric), 0.0)

    def mean(self, role: str, numerator: str, denominator: str) -> float | None:
        count = self.of(role, denominator)
        return self.of(role, numerator) / count if count > 0 else None

    def share_waited(
        self, policies: Collection[str], num_learners: int, elapsed_s: float | None
    ) -> float | None:
        """Of the time of their trainings, in the mean."""
        if not policies or not elapsed_s:
            return None
        shares = [min(1.0, self.waits.get(policy, 0.0) / num_learners / elapsed_s) for policy in policies]
        return sum(shares) / len(shares)


class Vitals:
    """Follows one run; `before` is the last sample of its earlier session, if it is resumed."""

    def __init__(self, before: Sample | None = None) -> None:
        self._counters = Counters()
        self._before = before or Sample(0.0)
        self._phases: PhaseSeconds = {role: dict(phases) for role, phases in self._before.phases.items()}
        self._load: dict[str, float] = dict(self._before.load)
        self._env_steps = {
            policy: int(figures["env_steps"])
            for policy, figures in self._before.policies.items()
            if "env_steps" in figures
        }
        self._last_time_s: float | None = None
        # Polls of the last WINDOW_S: since when, and what was new.
        self._recent: deque[tuple[float, _Growth]] = deque()
        # Work per second of each process that was there at the last poll, by name.
        self.rates: dict[str, float] = {}

    def update(self, time_s: float, readings: Iterable[Reading], num_restarts: int) -> Sample:
        """The run at `time_s`, which counts from the beginning of its first session."""
        readings = tuple(readings)
        growth, elapsed_s = self._lately(time_s, self._grow(readings))
        present = {reading.process for reading in readings}
        self.rates = {
            process: work / elapsed_s
            for process, work in growth.work.items()
            if elapsed_s and process in present
        }
        gauges = _Gauges(readings)
        steps = gauges.by_policy("shoal_learner_run_env_steps")
        # A learner that just came back shows 0 until it has loaded its checkpoint.
        self._env_steps |= {policy: int(value) for policy, value in steps.items() if value}
        max_items = gauges.sum("replay", "shoal_replay_max_items")
        items = gauges.sum("replay", "shoal_replay_items")
        latency_s = growth.mean(
            "inference",
            "shoal_inference_request_latency_seconds_sum",
            "shoal_inference_request_latency_seconds_count",
        )
        versions = gauges.by_policy("shoal_learner_policy_version")
        batches = gauges.by_policy("shoal_learner_effective_batch_steps")
        returns, evaluations = gauges.training_returns(), gauges.evaluation_returns()
        untrained = gauges.untrained_returns()
        highest = max(returns, key=returns.__getitem__, default=None)
        return Sample(
            time_s=round(time_s, 3),
            env_steps=sum(self._env_steps.values()) if self._env_steps else self._before.env_steps,
            episode_return=None if highest is None else returns[highest],
            untrained_return=None if highest is None else untrained.get(highest),
            evaluation_return=max(evaluations.values(), default=None),
            env_steps_per_s=_rate(growth.of("actor", "shoal_actor_env_steps_total"), elapsed_s),
            trained_steps_per_s=_rate(growth.of("learner", "shoal_learner_trained_steps_total"), elapsed_s),
            samples_per_step=gauges.samples_per_step(),
            learner_waiting=growth.share_waited(gauges.learning(), gauges.count("learner"), elapsed_s),
            inference_batch=growth.mean(
                "inference", "shoal_inference_rows_total", "shoal_inference_batches_total"
            ),
            inference_latency_ms=None if latency_s is None else 1000 * latency_s,
            replay_items=None if items is None else int(items),
            replay_fill=items / max_items if items is not None and max_items else None,
            policy_lag=growth.mean(
                "learner", "shoal_learner_policy_lag_versions_sum", "shoal_learner_policy_lag_versions_count"
            ),
            policy_version=int(max(versions.values())) if versions else None,
            effective_batch=int(max(batches.values())) if batches else None,
            num_restarts=self._before.num_restarts + num_restarts,
            phases={role: dict(phases) for role, phases in self._phases.items()},
            load=dict(sorted(self._load.items())),
            policies=self._policies(gauges) if len(steps) > 1 else {},
            guards=gauges.guards(name_policies=len(steps) > 1),
        )

    def _policies(self, gauges: _Gauges) -> PolicyFigures:
        learning = gauges.learning()
        losses = gauges.by_policy("shoal_learner_loss")
        figures: dict[str, Mapping[str, float]] = {
            "episode_return": gauges.training_returns(),
            "untrained_return": gauges.untrained_returns(),
            "evaluation_return": gauges.evaluation_returns(),
            "loss": {policy: loss for policy, loss in losses.items() if policy in learning},
            "env_steps": self._env_steps,
        }
        return {
            policy: {name: values[policy] for name, values in figures.items() if policy in values}
            for policy in gauges.by_policy("shoal_learner_run_env_steps")
        }

    def _lately(self, time_s: float, new: _Growth) -> tuple[_Growth, float | None]:
        """All of the window, with its length; of the first poll it is not known since when."""
        since, self._last_time_s = self._last_time_s, time_s
        if since is None:
            return new, None
        self._recent.append((since, new))
        while time_s - self._recent[0][0] > WINDOW_S and len(self._recent) > 1:
            self._recent.popleft()
        growth = _Growth()
        for _, part in self._recent:
            growth.add(part)
        return growth, time_s - self._recent[0][0]

    def _grow(self, readings: Iterable[Reading]) -> _Growth:
        growth = _Growth()
        for reading in readings:
            grown = self._counters.advance(reading.process, reading.life, reading.metrics)
            for name in grown:
                growth.sums[reading.role, name] += total(grown, name) or 0.0
            self._add_phases(reading.role, grown, growth)
            work = total(grown, WORK[reading.role][0]) or 0.0
            growth.work[reading.process] += work
            self._load[reading.process] = self._load.get(reading.process, 0.0) + work
        return growth

    def _add_phases(self, role: str, grown: Metrics, growth: _Growth) -> None:
        spent = [(phase, value) for _, phase, value in by_label(grown, "phase")]
        spent += [(phase, total(grown, name) or 0.0) for name, phase in WAITS.items() if name in grown]
        phases = self._phases.setdefault(role, {}) if spent else {}
        for phase, seconds in spent:
            phases[phase] = phases.get(phase, 0.0) + seconds
        for labels, seconds in grown.get(LEARNER_PHASES, {}).items():
            if label(labels, "phase") == LEARNER_WAIT:
                growth.waits[policy_of(labels)] += seconds


class _Gauges:
    """Values as they stand, over all processes of a role."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = tuple(readings)

    def sum(self, role: str, name: str) -> float | None:
        values = [total(r.metrics, name) for r in self._readings if r.role == role and name in r.metrics]
        return sum(value for value in values if value is not None) if values else None

    def by_policy(self, name: str) -> dict[str, float]:
        """Of the learner; of several the first speaks for all."""
        found = [by_policy(r.metrics, name) for r in self._readings if r.process == CHIEF]
        return found[0] if found else {}

    def count(self, role: str) -> int:
        return sum(reading.role == role for reading in self._readings)

    def learning(self) -> list[str]:
        """Policies that are trained. Before its first batch one waits for the run to start, not for data."""
        return [
            policy for policy, steps in self.by_policy("shoal_learner_trained_steps_total").items() if steps
        ]

    def samples_per_step(self) -> float | None:
        """How often a step was trained on, in the mean over the run so far."""
        env_steps = sum(self.by_policy("shoal_learner_run_env_steps").values())
        trained_steps = sum(self.by_policy("shoal_learner_run_trained_steps").values())
        return trained_steps / env_steps if env_steps else None

    def guards(self, *, name_policies: bool) -> list[str]:
        """Those that warn."""
        active = {
            (policy_of(labels), label(labels, "guard") or "")
            for reading in self._readings
            for labels, value in reading.metrics.get("shoal_learner_guard_active", {}).items()
            if value
        }
        return [f"{policy}: {guard}" if name_policies else guard for policy, guard in sorted(active)]

    def training_returns(self) -> dict[str, float]:
        """By policy; the gauge shows 0 as long as there is no episode."""
        episodes = self.by_policy("shoal_learner_episodes_total")
        means = self.by_policy("shoal_learner_episode_return_mean")
        return {policy: mean for policy, mean in means.items() if episodes.get(policy)}

    def untrained_returns(self) -> dict[str, float]:
        """By policy, of those that have finished an episode which began untrained."""
        episodes = self.by_policy("shoal_learner_untrained_episodes")
        means = self.by_policy("shoal_learner_untrained_return_mean")
        return {policy: mean for policy, mean in means.items() if episodes.get(policy)}

    def evaluation_returns(self) -> dict[str, float]:
        """By policy: the mean over the evaluators that have finished an episode with it."""
        means: dict[str, list[float]] = defaultdict(list)
        for reading in self._readings:
            episodes = reading.metrics.get("shoal_actor_episodes_total", {})
            for labels, mean in reading.metrics.get("shoal_actor_episode_return_mean", {}).items():
                if label(labels, "mode") == "evaluate" and episodes.get(labels):
                    means[policy_of(labels)].append(mean)
        return {policy: sum(values) / len(values) for policy, values in means.items()}


def _rate(growth: float, elapsed_s: float | None) -> float | None:
    return growth / elapsed_s if elapsed_s else None
