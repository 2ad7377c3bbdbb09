"""The training loop, in a thread of its own.

Publish what it begins with, then for ever: take a batch, train, publish, save now and then; at the end a last
checkpoint and the result. Talks to the event loop only through the ring and the publisher.
Of several learners all go the same way, step by step; the chief alone publishes and saves.
"""

from __future__ import annotations

import contextlib
import logging
import time

from services.learner.batches import BatchSlot
from services.learner.parts import Parts
from services.learner.peers import Alone, Peers
from services.learner.progress import Lag
from services.learner.reporting import Reporter
from services.learner.result import RunResult
from services.learner.resume import Resumed
from services.learner.ring import BatchRing, RingClosed
from services.learner.rounds import Round, Told, hold_round
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
        summaries: Summaries | None,
        clock: Clock = time.monotonic,
        peers: Peers | None = None,
    ) -> None:
        self._config = config
        self._spec = spec
        self._trainer = resumed.trainer
        self._progress = resumed.progress
        self._ring = ring
        self._publisher = parts.publisher
        self._versions = parts.versions
        self._store = parts.store
        self._metrics = parts.metrics
        self._clock = clock
        self._peers = peers or Alone()
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
            taken = self._take_batch()
            if taken is None:
                reason = "stopped"
                break
            last = self._step(*taken)
            if progress.learner_steps % settings.publish_every == 0:
                self._publish()
            self._reporter.step(progress, *last)
            if self._clock() >= next_checkpoint and not saver.is_busy:
                next_checkpoint = self._clock() + settings.checkpoint_every_s
                self._save(saver)
        if last is not None:
            self._reporter.report(progress, *last)
        return reason

    def _take_batch(self) -> tuple[BatchSlot, Round] | None:
        """The next batch, once all learners have one; None when one of them is to stop."""
        slot: BatchSlot | None = None
        while True:
            with self._metrics.phases.measure("wait"):
                with contextlib.suppress(RingClosed):
                    slot = slot or self._ring.take_ready(_WAIT_SLICE_S)
                agreed = self._hold_round(slot)
            if agreed.is_stopping:
                return None
            if slot is not None and agreed.is_complete:
                return slot, agreed

    def _hold_round(self, slot: BatchSlot | None) -> Round:
        is_stopping, version = self._ring.is_closed, self._progress.policy_version
        if slot is None:
            return hold_round(self._peers, Told(is_stopping, has_batch=False, policy_version=version))
        told = Told(is_stopping, True, slot.num_transitions, version, len(slot.episodes))
        return hold_round(self._peers, told, slot.episodes)

    def _step(self, slot: BatchSlot, agreed: Round) -> tuple[StepOutcome, Lag]:
        self._progress.policy_version = agreed.policy_version
        with self._metrics.phases.measure("train"):
            outcome = self._trainer.step(slot.on_device())
        if not self._progress.learner_steps:
            log.info("%sfirst batch trained", self._metrics.log_label)
        lag = Lag.of(self._progress.policy_version, slot.versions())
        self._progress.count_batch(agreed.num_transitions, agreed.episodes)
        self._metrics.steps.inc()
        self._metrics.env_steps.inc(slot.num_transitions)
        self._metrics.episodes.inc(len(slot.episodes))
        self._metrics.observe_lag(lag.counts)
        self._ring.release(slot)
        return outcome, lag

    def _publish(self) -> None:
        if self._peers.rank != 0:
            return
        with self._metrics.phases.measure("publish"):
            weights = self._trainer.weights()
            self._progress.policy_version = self._versions.next()
            self._publisher.publish(self._progress.policy_version, weights)

    def _save(self, saver: CheckpointSaver, is_last: bool = False) -> None:
        self._progress.seconds = self._clock() - self._epoch
        if self._peers.rank != 0:
            return
        saver.save(self._trainer.state(), self._progress.to_json(), is_last)

    def _result(self, reason: str) -> RunResult:
        progress = self._progress
        log.info("%sdone (%s) at learner step %d", self._metrics.log_label, reason, progress.learner_steps)
        return RunResult(
            reason=reason,
            mean_return=progress.mean_return,
            env_steps=progress.env_steps,
            learner_steps=progress.learner_steps,
            policy_version=progress.policy_version,
            seconds=progress.seconds,
            policy=self._metrics.policy,
        )
