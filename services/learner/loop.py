"""The training loop, in a thread of its own.

Publish what it begins with, then for ever: take a batch, train, publish, save now and then; at the end a last
checkpoint and the result. Talks to the event loop only through the ring, the publisher and what takes the
priorities back. Of several learners all go the same way, step by step; the chief alone publishes and saves.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace

import numpy as np

from services.learner.batches import BatchSlot
from services.learner.guard_stops import note_guard_stop
from services.learner.guards import NON_FINITE, GuardError, Guards, RollBack
from services.learner.parts import Parts
from services.learner.peers import Alone, Peers
from services.learner.priorities import PriorityReturn
from services.learner.progress import Lag
from services.learner.reporting import Reporter
from services.learner.result import STOPPED, RunResult
from services.learner.resume import Resumed
from services.learner.ring import BatchRing, RingClosed
from services.learner.rollback import go_back
from services.learner.rounds import Round, Told, announce_version, hold_round
from services.learner.saver import CheckpointSaver
from services.learner.schedule import LearningRate
from services.learner.staleness import Fresh, leave_out_stale
from services.learner.summaries import Curves
from services.learner.trainer import StepOutcome
from shoal.config import Config, to_yaml
from shoal.config.policies import policy_seed
from shoal.errors import NonFiniteError
from shoal.metrics import Clock
from shoal.records import EnvSpec, Episode

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
        summaries: Curves,
        priorities: PriorityReturn | None = None,
        clock: Clock = time.monotonic,
        peers: Peers | None = None,
    ) -> None:
        """`priorities`: where those go that the algorithm makes, if the table has some."""
        self._config = config
        self._is_synchronous = config.algorithm.is_synchronous
        self._spec = spec
        self._resumed = resumed
        self._trainer = resumed.trainer
        self._progress = resumed.progress
        self._ring = ring
        self._publisher = parts.publisher
        # Algorithms that learn from what anybody did can begin with random actions; others must not.
        self._warms_up = config.exploration.warmup and config.algorithm.replays
        self._versions = parts.versions
        self._store = parts.store
        self._dir = parts.place.dir
        self._metrics = parts.metrics
        self._priorities = priorities
        self._clock = clock
        self._peers = peers or Alone()
        self._reporter = Reporter(parts.metrics, summaries, ring, clock)
        self._rate = LearningRate(config, ring.length)
        self._guards = Guards(config.learner.guards, config.algorithm, spec.action, parts.metrics, clock)
        self._epoch = clock()

    def stop(self) -> None:
        """Finish the step, save, return."""
        self._ring.close()

    def run(self) -> RunResult:
        """Until a stop condition or `stop`. Raises NonFiniteError or GuardError."""
        # When the run would have begun without breaks.
        self._epoch = self._clock() - self._progress.seconds
        saver = CheckpointSaver(
            self._store, self._spec, to_yaml(self._config), self._metrics, self._progress.learner_steps
        )
        log.info("%s%s", self._metrics.log_label, self._rate.describe())
        self._metrics.effective_batch.set(self._rate.batch.num_steps)
        self._metrics.checkpoint_every.set(self._config.learner.checkpoint_every_s)
        try:
            self._publish()
            if self._guards.may_roll_back and not self._progress.learner_steps:
                self._save(saver)
            reason = self._train(saver)
            self._save(saver, is_last=True)
        except GuardError as error:
            # The parts of a divided policy are with learners that may not know of it.
            if error.may_save and not self._trainer.is_sharded:
                self._save(saver, is_last=True)
            self._note_stop(error.guard)
            raise
        except NonFiniteError:
            self._note_stop(NON_FINITE)
            raise
        finally:
            saver.close()
        return self._result(reason)

    def _train(self, saver: CheckpointSaver) -> str:
        """Step after step. Returns why it ended."""
        settings = self._config.learner
        next_checkpoint = self._clock() + settings.checkpoint_every_s
        last: tuple[StepOutcome, Lag] | None = None
        while (reason := self._progress.reason_to_stop(self._config.stop)) is None:
            taken = self._take_batch()
            if taken is None:
                reason = STOPPED
                break
            try:
                done = self._step(*taken)
                if done is None:
                    if self._is_synchronous:
                        # The actors that brought it wait for a newer version all the same.
                        self._publish()
                    self._guards.waited(self._progress.learner_steps)
                    continue
                last = done
                if self._is_version_due():
                    self._publish()
                self._reporter.step(self._progress, *last)
                self._guards.step(self._progress, last[0])
                if self._is_due(self._clock() >= next_checkpoint and not saver.is_busy):
                    next_checkpoint = self._clock() + settings.checkpoint_every_s
                    self._save(saver)
            except NonFiniteError as error:
                self._roll_back(self._guards.non_finite(error, self._progress.learner_steps), saver)
            except RollBack as wanted:
                self._roll_back(wanted, saver)
        if last is not None:
            self._reporter.report(self._progress, *last)
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
            self._guards.waited(self._progress.learner_steps)

    def _hold_round(self, slot: BatchSlot | None) -> Round:
        is_stopping, version = self._ring.is_closed, self._progress.policy_version
        if slot is None:
            return hold_round(self._peers, Told(is_stopping, has_batch=False, policy_version=version))
        env_steps, episodes = self._counted(slot)
        told = Told(is_stopping, True, env_steps, slot.num_transitions, version, len(episodes))
        return hold_round(self._peers, told, episodes)

    def _counted(self, slot: BatchSlot) -> tuple[int, list[Episode]]:
        """Environment steps and episodes that came with a batch, for this learner to count.

        Every learner hears all that comes into a sampled table: the chief counts it.
        """
        counts = slot.refs is None or self._peers.rank == 0
        return (slot.env_steps, slot.episodes) if counts else (0, [])

    def _step(self, slot: BatchSlot, agreed: Round) -> tuple[StepOutcome, Lag] | None:
        """Train on a batch; None if nothing in it counts: all too old, or all agents were away."""
        self._progress.policy_version = agreed.policy_version
        if not (self._progress.learner_steps or self._progress.knows_untrained):
            self._progress.untrained_version = agreed.policy_version
        factor = self._rate.factor(self._progress.env_steps)
        self._progress.count_data(agreed.env_steps, agreed.episodes)
        env_steps, episodes = self._counted(slot)
        self._metrics.env_steps.inc(env_steps)
        self._metrics.count_episodes(len(episodes), self._progress.mean_return, self._progress.mean_length)
        try:
            fresh = leave_out_stale(slot, agreed.policy_version, self._config.learner.max_policy_lag)
            self._metrics.stale_steps.inc(fresh.num_stale)
            num_fresh = self._num_fresh(slot, fresh, agreed)
            if not num_fresh:
                if fresh.num_stale:
                    self._metrics.stale_batches.inc()
                return None
            with self._metrics.phases.measure("train"):
                outcome = self._trainer.step(fresh.batch, factor)
            if self._priorities is not None and slot.refs is not None and outcome.priority_B is not None:
                self._priorities.after_step(slot.refs, outcome.priority_B)
            if not self._progress.learner_steps:
                log.info("%sfirst batch trained", self._metrics.log_label)
            self._progress.count_step(num_fresh)
            self._metrics.steps.inc()
            self._metrics.trained_steps.inc(slot.num_transitions - fresh.num_stale)
            lag = Lag.of(agreed.policy_version, fresh.versions)
            self._metrics.observe_lag(lag.counts)
            return outcome, lag
        finally:
            self._ring.release(slot)

    def _num_fresh(self, slot: BatchSlot, fresh: Fresh, agreed: Round) -> int:
        """Steps that all learners have left to train on: they make a step together or none."""
        if self._config.learner.max_policy_lag is None:
            return agreed.num_transitions
        own = np.array([slot.num_transitions - fresh.num_stale])
        return int(np.sum(self._peers.gather(own)))

    def _roll_back(self, wanted: RollBack, saver: CheckpointSaver) -> None:
        """Back to the newest checkpoint that was made before the guard saw anything. Versions still rise."""
        saver.wait()
        at = replace(self._resumed, progress=self._progress)
        seed = policy_seed(self._config, self._metrics.policy)
        progress = go_back(self._peers, self._store, at, wanted.before_step, seed)
        if progress is None:
            raise GuardError(
                wanted.guard,
                f"guard {wanted.guard}: there is no checkpoint left from before it to go back to",
            )
        from_step, self._progress = self._progress.learner_steps, progress
        self._guards.begin()
        self._metrics.rollbacks.inc()
        log.warning(
            "%sguard %s: gone back from learner step %d to %d",
            self._metrics.log_label,
            wanted.guard,
            from_step,
            progress.learner_steps,
        )
        self._publish()
        # The newest on the disk again, should this life end before the next one is due.
        self._save(saver)

    def _publish(self) -> None:
        if self._peers.rank != 0:
            if self._guards.may_roll_back or self._trainer.is_sharded:
                # What the chief finds in them all must find: they go back together.
                self._trainer.weights()
            self._leave_out_older()
            return
        with self._metrics.phases.measure("publish"):
            weights = self._trainer.weights()
            self._progress.policy_version = self._versions.next()
            self._leave_out_older()
            untrained = self._warms_up and not self._progress.learner_steps
            self._publisher.publish(self._progress.policy_version, weights, untrained)

    def _leave_out_older(self) -> None:
        """All learners do so before anybody has the new version: what it brings never meets what is older."""
        if self._is_synchronous:
            self._progress.policy_version = announce_version(
                self._peers, self._progress.policy_version, self._ring.refuse_older_than
            )

    def _is_version_due(self) -> bool:
        steps = self._progress.learner_steps
        # Actions are random until somebody hears of the first step.
        return steps % self._config.learner.publish_every == 0 or (self._warms_up and steps == 1)

    def _is_due(self, is_due: bool) -> bool:
        """A checkpoint, by the chief's clock; of a divided policy all learners make it together."""
        if not self._trainer.is_sharded:
            return is_due
        return bool(self._peers.gather(np.array([is_due], np.int64))[0][0])

    def _save(self, saver: CheckpointSaver, is_last: bool = False) -> None:
        self._progress.seconds = self._clock() - self._epoch
        if self._peers.rank != 0:
            if self._trainer.is_sharded:
                self._trainer.state()
            return
        try:
            state = self._trainer.state()
        except NonFiniteError as error:
            if self._peers.size == 1:
                raise
            # The others do not know, and would wait for ever if this one went back.
            raise GuardError(NON_FINITE, str(error)) from None
        saver.save(state, self._progress.to_json(), is_last)

    def _note_stop(self, guard: str) -> None:
        """For whoever watches: this process is about to be gone, and its metrics with it."""
        if self._peers.rank == 0:
            note_guard_stop(self._dir, guard, self._metrics)

    def _result(self, reason: str) -> RunResult:
        progress, newest = self._progress, self._progress.newest
        is_short = 0 < newest.num < len(progress.episodes)
        has_learned = progress.has_learned(self._config.learner.guards.no_progress.standard_errors)
        verdict = ", has not learned" if has_learned is False and reason != "until_return" else ""
        log.info(
            "%sdone (%s) at learner step %d: return %s%s",
            self._metrics.log_label,
            reason,
            progress.learner_steps,
            progress.describe_return(),
            verdict,
        )
        return RunResult(
            reason=reason,
            mean_return=progress.mean_return,
            env_steps=progress.env_steps,
            trained_steps=progress.trained_steps,
            learner_steps=progress.learner_steps,
            policy_version=progress.policy_version,
            seconds=progress.seconds,
            policy=self._metrics.policy,
            guards=self._guards.fired,
            untrained_return=progress.untrained_return,
            untrained_episodes=progress.untrained.num,
            newest_return=newest.mean if is_short else None,
            newest_episodes=newest.num if is_short else 0,
            best_return=None if progress.best is None else progress.best.returns.mean,
            has_learned=has_learned,
        )
