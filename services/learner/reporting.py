"""What the training thread tells the world: metrics twice a second, curves and a log line every few seconds.

Counters that must be exact are kept per step; everything that costs a conversion is done here, on a timer.
"""

from __future__ import annotations

import logging

from services.learner.metrics import PolicyMetrics
from services.learner.progress import Lag, Progress
from services.learner.ring import BatchRing
from services.learner.summaries import Curves
from services.learner.trainer import StepOutcome
from shoal.metrics import Clock

log = logging.getLogger(__name__)

METRICS_EVERY_S = 0.5
SUMMARY_EVERY_S = 2.0
LOG_EVERY_S = 10.0


class Reporter:
    """Used by the training thread only."""

    def __init__(self, metrics: PolicyMetrics, summaries: Curves, ring: BatchRing, clock: Clock) -> None:
        self._metrics = metrics
        self._summaries = summaries
        self._ring = ring
        self._clock = clock
        now = clock()
        self._next_metrics = now
        self._next_summary = now
        self._next_log = now + LOG_EVERY_S
        self._last_summary = now
        self._env_steps_then: int | None = None
        self._learner_steps_then = 0

    def step(self, progress: Progress, outcome: StepOutcome, lag: Lag) -> None:
        """After every learner step; mostly returns at once."""
        now = self._clock()
        if now >= self._next_metrics:
            self.report(progress, outcome, lag)

    def report(self, progress: Progress, outcome: StepOutcome, lag: Lag) -> None:
        """Whatever is due, and the metrics in any case."""
        now = self._clock()
        values = {name: float(value) for name, value in outcome.metrics.items()}
        self._next_metrics = now + METRICS_EVERY_S
        self._set_metrics(progress, outcome, lag, values)
        if now >= self._next_summary:
            self._next_summary = now + SUMMARY_EVERY_S
            self._summarise(now, progress, outcome, lag, values)
        if now >= self._next_log:
            self._next_log = now + LOG_EVERY_S
            log.info(
                "%slearner step %d, %d env steps, version %d, return %s over %d episodes, lag %.1f",
                self._metrics.log_label,
                progress.learner_steps,
                progress.env_steps,
                progress.policy_version,
                progress.describe_return(),
                len(progress.episodes),
                lag.mean,
            )

    def _set_metrics(
        self, progress: Progress, outcome: StepOutcome, lag: Lag, values: dict[str, float]
    ) -> None:
        metrics = self._metrics
        metrics.run_steps.set(progress.learner_steps)
        metrics.run_env_steps.set(progress.env_steps)
        metrics.run_trained_steps.set(progress.trained_steps)
        metrics.untrained_return_mean.set(progress.untrained.mean)
        metrics.untrained_episodes.set(progress.untrained.num)
        metrics.policy_version.set(progress.policy_version)
        metrics.loss.set(outcome.loss)
        metrics.grad_norm.set(outcome.grad_norm)
        metrics.learning_rate.set(outcome.learning_rate)
        metrics.policy_lag_mean.set(lag.mean)
        metrics.policy_lag_p95.set(lag.p95)
        metrics.policy_lag_max.set(lag.max)
        metrics.ready_batches.set(self._ring.num_ready)
        for name, value in values.items():
            metrics.algorithm(name).set(value)

    def _summarise(
        self, now: float, progress: Progress, outcome: StepOutcome, lag: Lag, values: dict[str, float]
    ) -> None:
        scalars = {f"algorithm/{name}": value for name, value in values.items()}
        scalars |= {"training/loss": outcome.loss, "training/grad_norm": outcome.grad_norm}
        scalars["training/learning_rate"] = outcome.learning_rate
        scalars |= {"training/policy_lag_mean": lag.mean, "training/policy_lag_max": float(lag.max)}
        if progress.mean_return is not None and progress.mean_length is not None:
            scalars |= {"episode/return": progress.mean_return, "episode/length": progress.mean_length}
        if self._env_steps_then is not None and now > self._last_summary:
            elapsed = now - self._last_summary
            scalars["speed/env_steps_per_s"] = (progress.env_steps - self._env_steps_then) / elapsed
            scalars["speed/learner_steps_per_s"] = (
                progress.learner_steps - self._learner_steps_then
            ) / elapsed
        self._last_summary = now
        self._env_steps_then = progress.env_steps
        self._learner_steps_then = progress.learner_steps
        self._summaries.add(progress.env_steps, scalars)
