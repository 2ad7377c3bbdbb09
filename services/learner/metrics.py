"""What the learner measures about itself. Created in `__main__`; no torch.

Counters are kept by whoever does the work; gauges are set about twice a second, never per step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily

from shoal.metrics import Phases

PHASES = ("wait", "decode", "copy", "train", "publish")
LAG_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)


class LagHistogram:
    """Policy lag of every trained transition: a Prometheus histogram filled a batch at a time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._counts = np.zeros(len(LAG_BUCKETS) + 1, np.int64)
        self._sum = 0.0
        registry.register(self)

    def observe(self, counts_by_lag: np.ndarray) -> None:
        """`counts_by_lag[i]` transitions were i versions behind."""
        lags = np.arange(len(counts_by_lag))
        bucket = np.searchsorted(LAG_BUCKETS, lags)
        added = np.bincount(bucket, weights=counts_by_lag, minlength=len(self._counts))
        with self._lock:
            self._counts += added.astype(np.int64)
            self._sum += float(lags @ counts_by_lag)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        with self._lock:
            cumulative, total = np.cumsum(self._counts), self._sum
        bounds = [*(str(float(bound)) for bound in LAG_BUCKETS), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, cumulative, strict=True)]
        yield HistogramMetricFamily(
            "shoal_learner_policy_lag_versions",
            "Published versions between acting and training, per trained transition.",
            buckets=buckets,
            sum_value=total,
        )


class LearnerMetrics:
    """All metrics of the learner."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.phases = Phases(
            registry,
            "shoal_learner_phase",
            "Time per phase: wait (for data), decode and copy (prefetch threads), train, publish.",
            PHASES,
        )

        def counter(name: str, text: str) -> Counter:
            return Counter(f"shoal_learner_{name}", text, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"shoal_learner_{name}", text, registry=registry)

        self.steps = counter("steps", "Learner steps of this process: gradient updates, one batch each.")
        self.env_steps = counter("env_steps", "Environment steps trained on by this process.")
        self.episodes = counter("episodes", "Finished episodes in trained trajectories.")
        self.trajectories_dropped = counter(
            "trajectories_dropped", "Trajectories that did not fit the configuration; the log says why."
        )
        self.checkpoints = counter("checkpoints", "Checkpoints written.")
        self.checkpoints_failed = counter("checkpoints_failed", "Checkpoints that could not be written.")
        self.run_env_steps = gauge("run_env_steps", "Environment steps trained on, over all restarts.")
        self.run_steps = gauge("run_steps", "Learner steps, over all restarts.")
        self.episode_return_mean = gauge(
            "episode_return_mean", "Mean return of the last 100 episodes (of fewer before there are 100)."
        )
        self.episode_length_mean = gauge(
            "episode_length_mean_steps", "Mean length of the last 100 episodes, in environment steps."
        )
        self.loss = gauge("loss", "The loss of the last step.")
        self.grad_norm = gauge("grad_norm", "Norm of the gradient of the last step, before clipping.")
        self.algorithm = Gauge(
            "shoal_learner_algorithm_value",
            "Values of the algorithm at the last step, by name: entropy, value_loss, ...",
            ["name"],
            registry=registry,
        )
        self.policy_version = gauge("policy_version", "Newest published policy version.")
        self.policy_lag_mean = gauge("policy_lag_mean", "Mean policy lag of the last batch, in versions.")
        self.policy_lag_p95 = gauge("policy_lag_p95", "95th percentile of the last batch's lag, in versions.")
        self.policy_lag_max = gauge("policy_lag_max", "Largest lag of the last batch, in versions.")
        self.policy_lag = LagHistogram(registry)
        self.ready_batches = gauge("ready_batches", "Batches decoded and waiting for training.")
        self.subscribers = gauge("subscribers", "Open weight subscriptions.")
        self.checkpoint_time = gauge(
            "last_checkpoint_timestamp_seconds", "When the last checkpoint was written, in Unix time."
        )
