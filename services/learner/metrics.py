"""What the learner measures about itself, policy by policy. Created in `__main__`; no torch.

Counters are kept by whoever does the work; gauges are set about twice a second, never per step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily

from shoal.metrics import Phases
from shoal.records import DEFAULT_POLICY

PHASES = ("wait", "decode", "copy", "train", "publish")
LAG_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)

COUNTERS = {
    "steps": "Learner steps of this process: batches trained on, in one pass or several.",
    "env_steps": "Environment steps of this process's data; those of a sampled table as they come.",
    "trained_steps": "Steps that this process trained on; those of a sampled table each time.",
    "episodes": "Finished episodes in those environment steps.",
    "stale_steps": "Environment steps that count for nothing: they are older than learner.max_policy_lag.",
    "stale_batches": "Batches that were not trained on because all of their unrolls are too old.",
    "rollbacks": "Times that training went back to a checkpoint because a guard asked for it.",
    "trajectories_dropped": "Trajectories or transitions that did not fit the configuration; see the log.",
    "priorities_updated": "New priorities that the table has taken.",
    "priorities_gone": "New priorities of items that the table had dropped.",
    "priorities_dropped": "New priorities whose shard was away, or too slow to take them.",
    "outdated_steps": "Environment steps that synchronous training left out: a newer version was there.",
    "checkpoints": "Checkpoints written.",
    "checkpoints_failed": "Checkpoints that could not be written.",
}
GAUGES = {
    "run_env_steps": "Environment steps, over all restarts.",
    "run_trained_steps": "Steps trained on, over all restarts.",
    "run_steps": "Learner steps, over all restarts.",
    "episode_return_mean": "Mean return of the last 100 episodes (of fewer before there are 100).",
    "untrained_return_mean": "Mean return of random play, or of the first episodes of training.",
    "untrained_episodes": "Episodes that untrained_return_mean is of.",
    "episode_length_mean_steps": "Mean length of the last 100 episodes, in environment steps.",
    "loss": "The loss of the last step.",
    "grad_norm": "Norm of the gradient of the last step, before clipping.",
    "learning_rate": "The optimiser's step size at the last step, with schedule and scaling.",
    "effective_batch_steps": "Environment steps that one step of the optimiser averages over.",
    "policy_version": "Newest published policy version.",
    "policy_lag_mean": "Mean policy lag of the last batch, in versions.",
    "policy_lag_p95": "95th percentile of the last batch's lag, in versions.",
    "policy_lag_max": "Largest lag of the last batch, in versions.",
    "ready_batches": "Batches decoded and waiting for training.",
    "subscribers": "Open weight subscriptions.",
    "last_checkpoint_timestamp_seconds": "When the last checkpoint was written, in Unix time.",
    "checkpoint_every_seconds": "Time between checkpoints that is asked for (s).",
}


class LagHistogram:
    """Policy lag of every trained transition: a Prometheus histogram filled a batch at a time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, np.ndarray] = {}
        self._sums: dict[str, float] = {}
        registry.register(self)

    def add(self, policy: str) -> None:
        """Show it from now on, though nothing was observed yet."""
        with self._lock:
            self._counts.setdefault(policy, np.zeros(len(LAG_BUCKETS) + 1, np.int64))
            self._sums.setdefault(policy, 0.0)

    def observe(self, policy: str, counts_by_lag: np.ndarray) -> None:
        """`counts_by_lag[i]` transitions were i versions behind."""
        lags = np.arange(len(counts_by_lag))
        bucket = np.searchsorted(LAG_BUCKETS, lags)
        added = np.bincount(bucket, weights=counts_by_lag, minlength=len(LAG_BUCKETS) + 1)
        with self._lock:
            self._counts[policy] += added.astype(np.int64)
            self._sums[policy] += float(lags @ counts_by_lag)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        with self._lock:
            found = [
                (policy, np.cumsum(counts), self._sums[policy]) for policy, counts in self._counts.items()
            ]
        bounds = [*(str(float(bound)) for bound in LAG_BUCKETS), "+Inf"]
        family = HistogramMetricFamily(
            "shoal_learner_policy_lag_versions",
            "Published versions between acting and training, per trained transition.",
            labels=["policy"],
        )
        for policy, cumulative, total in found:
            buckets = [(bound, float(count)) for bound, count in zip(bounds, cumulative, strict=True)]
            family.add_metric([policy], buckets, total)
        yield family


class LearnerMetrics:
    """All metrics of the learner, each with the policy as a label: whoever counts takes those `of` one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.phases = Counter(
            "shoal_learner_phase_seconds",
            "Time per phase: wait (for data), decode and copy (prefetch threads), train, publish.",
            ["policy", "phase"],
            registry=registry,
        )
        self.counters = {
            name: Counter(f"shoal_learner_{name}", text, ["policy"], registry=registry)
            for name, text in COUNTERS.items()
        }
        self.gauges = {
            name: Gauge(f"shoal_learner_{name}", text, ["policy"], registry=registry)
            for name, text in GAUGES.items()
        }
        self.algorithm = Gauge(
            "shoal_learner_algorithm_value",
            "Values of the algorithm at the last step, by name: entropy, value_loss, ...",
            ["policy", "name"],
            registry=registry,
        )
        self.guard_active = Gauge(
            "shoal_learner_guard_active",
            "1 while the guard warns; `docs/guards.md` says what each looks for.",
            ["policy", "guard"],
            registry=registry,
        )
        self.guard_fired = Counter(
            "shoal_learner_guard_fired",
            "Times that the guard was raised.",
            ["policy", "guard"],
            registry=registry,
        )
        self.guard_stop_time = Gauge(
            "shoal_learner_guard_stop_timestamp_seconds",
            "When the guard last ended the run, in this life of the learner or an earlier one, in Unix time; "
            "0 is never.",
            ["policy", "guard"],
            registry=registry,
        )
        self.policy_lag = LagHistogram(registry)

    def of(self, policy: str) -> PolicyMetrics:
        return PolicyMetrics(self, policy)


class PolicyMetrics:
    """The metrics of one policy; all are shown from the start, with zeros."""

    def __init__(self, metrics: LearnerMetrics, policy: str) -> None:
        self._metrics = metrics
        self.policy = policy
        # In front of what the log says of it: nothing if it is the only one.
        self.log_label = "" if policy == DEFAULT_POLICY else f"{policy}: "
        metrics.policy_lag.add(policy)
        self.phases = Phases.of({phase: metrics.phases.labels(policy, phase) for phase in PHASES})

        def counter(name: str) -> Counter:
            return metrics.counters[name].labels(policy)

        def gauge(name: str) -> Gauge:
            return metrics.gauges[name].labels(policy)

        self.steps = counter("steps")
        self.env_steps = counter("env_steps")
        self.trained_steps = counter("trained_steps")
        self.episodes = counter("episodes")
        self.stale_steps = counter("stale_steps")
        self.stale_batches = counter("stale_batches")
        self.rollbacks = counter("rollbacks")
        self.trajectories_dropped = counter("trajectories_dropped")
        self.priorities_updated = counter("priorities_updated")
        self.priorities_gone = counter("priorities_gone")
        self.priorities_dropped = counter("priorities_dropped")
        self.outdated_steps = counter("outdated_steps")
        self.checkpoints = counter("checkpoints")
        self.checkpoints_failed = counter("checkpoints_failed")
        self.run_env_steps = gauge("run_env_steps")
        self.run_trained_steps = gauge("run_trained_steps")
        self.run_steps = gauge("run_steps")
        self.episode_return_mean = gauge("episode_return_mean")
        self.untrained_return_mean = gauge("untrained_return_mean")
        self.untrained_episodes = gauge("untrained_episodes")
        self.episode_length_mean = gauge("episode_length_mean_steps")
        self.loss = gauge("loss")
        self.grad_norm = gauge("grad_norm")
        self.learning_rate = gauge("learning_rate")
        self.effective_batch = gauge("effective_batch_steps")
        self.policy_version = gauge("policy_version")
        self.policy_lag_mean = gauge("policy_lag_mean")
        self.policy_lag_p95 = gauge("policy_lag_p95")
        self.policy_lag_max = gauge("policy_lag_max")
        self.ready_batches = gauge("ready_batches")
        self.subscribers = gauge("subscribers")
        self.checkpoint_time = gauge("last_checkpoint_timestamp_seconds")
        self.checkpoint_every = gauge("checkpoint_every_seconds")

    def algorithm(self, name: str) -> Gauge:
        return self._metrics.algorithm.labels(self.policy, name)

    def guard_active(self, guard: str) -> Gauge:
        return self._metrics.guard_active.labels(self.policy, guard)

    def guard_fired(self, guard: str) -> Counter:
        return self._metrics.guard_fired.labels(self.policy, guard)

    def guard_stop_time(self, guard: str) -> Gauge:
        return self._metrics.guard_stop_time.labels(self.policy, guard)

    def count_episodes(self, number: int, mean_return: float | None, mean_length_steps: float | None) -> None:
        """The means of the last ones first: whoever sees an episode counted relies on them."""
        if mean_return is not None and mean_length_steps is not None:
            self.episode_return_mean.set(mean_return)
            self.episode_length_mean.set(mean_length_steps)
        self.episodes.inc(number)

    def observe_lag(self, counts_by_lag: np.ndarray) -> None:
        """`counts_by_lag[i]` transitions were i versions behind."""
        self._metrics.policy_lag.observe(self.policy, counts_by_lag)
