"""The training loop, in a thread of its own.

Publish what it begins with, then for ever: take a batch, train, publish, save now and then; at the end a last
checkpoint and the result. Talks to the event loop only through the ring, the publisher and what takes the
priorities back.
"""

from __future__ import annotations

import logging
import time

from services.learner.batches import BatchSlot
from services.learner.parts import Parts
from services.learner.priorities import PriorityReturn
from services.learner.progress import Lag
from services.learner.reporting import Reporter
from services.learner.result import RunResult
from services.learner.resume import Resumed
from services.learner.ring import BatchRing, RingClosed
from services.learner.saver import CheckpointSaver
from services.learner.summaries import Summaries
from services.learner.trainer import StepOutcome
from shoal.config import Config, to_yaml
from shoal.metrics import Clock
from shoal.records import EnvSpec

log = logging.getLogger(__name__)

# Waiting is added to its metric at least this often, so that a starved learner shows.
_WAIT_SLICE_S = 0.5


class TrainingLoop:
    """One policy's training in one life of the learner. `run` is the thread; `stop` may be called from any
    other."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        resumed: Resumed,
        ring: BatchRing,
        parts: Parts,
        summaries: Summaries,
        priorities: PriorityReturn | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """`priorities`: where those go that the algorithm makes, if the table has some."""
        self._config = config
        self._spec = spec
        self._trainer = resumed.trainer
        self._progress = resumed.progress
        self._ring = ring
        self._publisher = parts.publisher
        self._versions = parts.versions
        self._store = parts.store
        self._metrics = parts.metrics
        self._priorities = priorities
        self._clock = clock
        self._reporter = Reporter(parts.metrics, summaries, ring, clock)
        self._epoch = clock()

    def stop(self) -> None:
        """Finish the step, save, return."""
        self._ring.close()

    def run(self) -> RunResult:
        """Until a stop condition or `stop`. Raises NonFiniteError."""
        # When the run would have begun without breaks.
        self._epoch = self._clock() - self._progress.seconds
        saver = CheckpointSaver(
            self._store, self._spec, to_yaml(self._config), self._metrics, self._progress.learner_steps
        )
        try:
            self._publish()
            reason = self._train(saver)
            self._save(saver, is_last=True)
        finally:
            saver.close()
        return self._result(reason)

    def _train(self, saver: CheckpointSaver) -> str:
        """Step after step. Returns why it ended."""
        settings = self._config.learner
        progress = self._progress
        next_checkpoint = self._clock() + settings.checkpoint_every_s
        last: tuple[StepOutcome, Lag] | None = None
        while (reason := progress.reason_to_stop(self._config.stop)) is None:
            slot = self._take_batch()
            if slot is None:
                reason = "stopped"
                break
            last = self._step(slot)
            if progress.learner_steps % settings.publish_every == 0:
                self._publish()
            self._reporter.step(progress, *last)
            if self._clock() >= next_checkpoint and not saver.is_busy:
                next_checkpoint = self._clock() + settings.checkpoint_every_s
                self._save(saver)
        if last is not None:
            self._reporter.report(progress, *last)
        return reason

    def _take_batch(self) -> BatchSlot | None:
        """The next batch, or None when the learner is to stop."""
        while True:
            with self._metrics.phases.measure("wait"):
                try:
                    slot = self._ring.take_ready(_WAIT_SLICE_S)
                except RingClosed:
                    return None
            if slot is not None:
                return slot

    def _step(self, slot: BatchSlot) -> tuple[StepOutcome, Lag]:
        with self._metrics.phases.measure("train"):
            outcome = self._trainer.step(slot.on_device())
        if self._priorities is not None and slot.refs is not None and outcome.priority_B is not None:
            self._priorities.after_step(slot.refs, outcome.priority_B)
        if not self._progress.learner_steps:
            log.info("%sfirst batch trained", self._metrics.log_label)
        lag = Lag.of(self._progress.policy_version, slot.versions())
        self._progress.count_batch(slot.env_steps, slot.num_transitions, slot.episodes)
        self._metrics.steps.inc()
        self._metrics.env_steps.inc(slot.env_steps)
        self._metrics.trained_steps.inc(slot.num_transitions)
        self._metrics.episodes.inc(len(slot.episodes))
        self._metrics.observe_lag(lag.counts)
        self._ring.release(slot)
        return outcome, lag

    def _publish(self) -> None:
        with self._metrics.phases.measure("publish"):
            weights = self._trainer.weights()
            self._progress.policy_version = self._versions.next()
            self._publisher.publish(self._progress.policy_version, weights)

    def _save(self, saver: CheckpointSaver, is_last: bool = False) -> None:
        self._progress.seconds = self._clock() - self._epoch
        saver.save(self._trainer.state(), self._progress.to_json(), is_last)

    def _result(self, reason: str) -> RunResult:
        progress = self._progress
        log.info("%sdone (%s) at learner step %d", self._metrics.log_label, reason, progress.learner_steps)
        return RunResult(
            reason=reason,
            mean_return=progress.mean_return,
            env_steps=progress.env_steps,
            trained_steps=progress.trained_steps,
            learner_steps=progress.learner_steps,
            policy_version=progress.policy_version,
            seconds=progress.seconds,
            policy=self._metrics.policy,
        )
