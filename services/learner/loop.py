"""The training loop, in a thread of its own.

Build or resume, publish, then for ever: take a batch, train, publish, save now and then; at the end a last
checkpoint and the result. Talks to the event loop only through the ring and the publisher.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

import numpy as np
import torch

from services.learner.batches import BatchSlot
from services.learner.checkpoint import CheckpointStore
from services.learner.metrics import LearnerMetrics
from services.learner.progress import Lag, Progress
from services.learner.reporting import Reporter
from services.learner.result import RunResult
from services.learner.ring import BatchRing, RingClosed
from services.learner.saver import CheckpointSaver
from services.learner.summaries import Summaries
from services.learner.trainer import StepOutcome, Trainer
from services.learner.versions import VersionCounter
from shoal.algorithms.algorithm import Algorithm
from shoal.config import Config, to_yaml
from shoal.errors import CheckpointError
from shoal.metrics import Clock
from shoal.policy.network import build_policy
from shoal.records import EnvSpec

log = logging.getLogger(__name__)

# Waiting is added to its metric at least this often, so that a starved learner shows.
_WAIT_SLICE_S = 0.5


class Publisher(Protocol):
    """Where new weights go; called from the training thread."""

    def publish(self, version: int, weights: dict[str, np.ndarray]) -> None: ...


class TrainingLoop:
    """One run of the learner. `run` is the thread; `stop` may be called from any other."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        algorithm: Algorithm,
        device: torch.device,
        ring: BatchRing,
        publisher: Publisher,
        versions: VersionCounter,
        store: CheckpointStore,
        metrics: LearnerMetrics,
        summaries: Summaries,
        clock: Clock = time.monotonic,
    ) -> None:
        self._config = config
        self._spec = spec
        self._algorithm = algorithm
        self._device = device
        self._ring = ring
        self._publisher = publisher
        self._versions = versions
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._reporter = Reporter(metrics, summaries, ring, clock)
        self._progress = Progress()
        self._epoch = clock()

    def stop(self) -> None:
        """Finish the step, save, return."""
        self._ring.close()

    def run(self) -> RunResult:
        """Until a stop condition or `stop`. Raises NonFiniteError or CheckpointError."""
        # Per thread: this is the one that computes.
        torch.set_num_threads(self._config.learner.threads)
        start = self._clock()
        trainer = self._build_or_resume()
        # When the run would have begun without breaks.
        self._epoch = start - self._progress.seconds
        saver = CheckpointSaver(
            self._store, self._spec, to_yaml(self._config), self._metrics, self._progress.learner_steps
        )
        try:
            self._publish(trainer)
            reason = self._train(trainer, saver)
            self._save(trainer, saver, is_last=True)
        finally:
            saver.close()
        return self._result(reason)

    def _build_or_resume(self) -> Trainer:
        torch.manual_seed(self._config.run.seed)
        policy = build_policy(self._config.policy, self._spec).to(self._device)
        settings = self._config.algorithm
        trainer = Trainer(policy, self._algorithm, settings.learning_rate, settings.max_grad_norm)
        checkpoint = self._store.newest()
        if checkpoint is None:
            log.info("starting afresh: %s on %s", self._spec.describe(), self._device)
            return trainer
        checkpoint.check_spec(self._spec, self._store.path)
        checkpoint.check_policy(self._config.policy, self._store.path)
        try:
            trainer.load_state(checkpoint.tensors)
        except CheckpointError as error:
            raise CheckpointError(
                f"the newest checkpoint in {self._store.path} holds {error}: use another run.dir"
            ) from None
        self._progress = checkpoint.progress
        self._versions.raise_above(self._progress.policy_version)
        log.info("going on from learner step %d", self._progress.learner_steps)
        return trainer

    def _train(self, trainer: Trainer, saver: CheckpointSaver) -> str:
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
            last = self._step(trainer, slot)
            if progress.learner_steps % settings.publish_every == 0:
                self._publish(trainer)
            self._reporter.step(progress, *last)
            if self._clock() >= next_checkpoint and not saver.is_busy:
                next_checkpoint = self._clock() + settings.checkpoint_every_s
                self._save(trainer, saver)
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

    def _step(self, trainer: Trainer, slot: BatchSlot) -> tuple[StepOutcome, Lag]:
        with self._metrics.phases.measure("train"):
            outcome = trainer.step(slot.on_device())
        if not self._progress.learner_steps:
            log.info("first batch trained")
        lag = Lag.of(self._progress.policy_version, slot.versions())
        self._progress.count_batch(slot.num_transitions, slot.episodes)
        self._metrics.steps.inc()
        self._metrics.env_steps.inc(slot.num_transitions)
        self._metrics.episodes.inc(len(slot.episodes))
        self._metrics.policy_lag.observe(lag.counts)
        self._ring.release(slot)
        return outcome, lag

    def _publish(self, trainer: Trainer) -> None:
        with self._metrics.phases.measure("publish"):
            weights = trainer.weights()
            self._progress.policy_version = self._versions.next()
            self._publisher.publish(self._progress.policy_version, weights)

    def _save(self, trainer: Trainer, saver: CheckpointSaver, is_last: bool = False) -> None:
        self._progress.seconds = self._clock() - self._epoch
        saver.save(trainer.state(), self._progress.to_json(), is_last)

    def _result(self, reason: str) -> RunResult:
        progress = self._progress
        log.info("done (%s) at learner step %d", reason, progress.learner_steps)
        return RunResult(
            reason=reason,
            mean_return=progress.mean_return,
            env_steps=progress.env_steps,
            learner_steps=progress.learner_steps,
            policy_version=progress.policy_version,
            seconds=progress.seconds,
        )
