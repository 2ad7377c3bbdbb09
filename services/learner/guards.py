"""The learner watches itself: named warnings with advice, and what is done about them.

A guard that is raised is told once in the log, and once more when all is well again; the metrics count it.
Set to stop or to roll back it raises an exception that the training loop follows. Training thread only; the
loop calls `step` after every learner step and `waited` while it has nothing to train on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from services.learner.detectors import Collapse, Explosion, Finding, Growth, Stall
from services.learner.learning import Clipped, Fallen, Idle, Unexplained
from services.learner.metrics import PolicyMetrics
from services.learner.progress import Progress
from services.learner.trainer import StepOutcome
from shoal.algorithms import advice
from shoal.algorithms.settings import AlgorithmSection
from shoal.config.guards import GuardsSection
from shoal.errors import NonFiniteError, UserError
from shoal.metrics import Clock
from shoal.records import ActionSpec

log = logging.getLogger(__name__)

NON_FINITE, ENTROPY, VALUE = "non_finite", "entropy_collapse", "value_explosion"
GRADIENT, THROUGHPUT, MEMORY = "gradient_explosion", "throughput_stall", "memory_growth"
UNEXPLAINED, CLIPPED = "value_unexplained", "gradients_clipped"
IDLE, FALLEN = "no_progress", "return_collapse"

ADVICE = {
    ENTROPY: "Raise algorithm.entropy_cost or lower the learning rate, unless the return is what you want",
    VALUE: "Lower algorithm.learning_rate, or scale or clip the rewards",
    GRADIENT: "Lower algorithm.learning_rate or algorithm.max_grad_norm, or scale the rewards",
    THROUGHPUT: "Look at actors and replay: restarts, waiting times, machines that are too busy",
    MEMORY: "Look for lists that grow in code of your own (policy.network); else lower learner.batch_envs",
}

# Metrics of algorithms that say how far off their values are; the loss itself where there is none.
_VALUE_LOSSES = ("value_loss", "critic_loss")
_ENTROPY_METRIC, _EXPLAINED_METRIC = "entropy", "explained_variance"
# Those after which the weights are worth no less than before: they are saved at a stop.
_MAY_SAVE = (THROUGHPUT, MEMORY, UNEXPLAINED, CLIPPED, IDLE)
# One that comes and goes is not told more often than this.
_TELL_EVERY_S = 60.0


class GuardError(UserError):
    """A guard ends the run. `may_save`: what is in the weights is as good as ever."""

    def __init__(self, guard: str, text: str, may_save: bool = False) -> None:
        super().__init__(text)
        self.guard = guard
        self.may_save = may_save


class RollBack(Exception):
    """Go back to a checkpoint of at most this learner step."""

    def __init__(self, guard: str, before_step: int) -> None:
        super().__init__(guard)
        self.guard = guard
        self.before_step = before_step


class Guards:
    """Those of one policy's training. They begin anew after a rollback."""

    def __init__(
        self,
        settings: GuardsSection,
        algorithm: AlgorithmSection,
        action: ActionSpec,
        metrics: PolicyMetrics,
        clock: Clock,
        memory: Callable[[], int | None] | None = None,
    ) -> None:
        self._settings = settings
        self._max_grad_norm = algorithm.max_grad_norm
        self._action = action
        self._metrics = metrics
        self._clock = clock
        self._memory = memory or resident_bytes
        # How to learn better depends on the algorithm.
        self._advice = ADVICE | {
            UNEXPLAINED: advice.for_values(algorithm),
            CLIPPED: advice.for_gradients(algorithm),
            IDLE: advice.for_no_progress(algorithm),
            FALLEN: advice.for_collapse(algorithm),
        }
        self._actions: dict[str, str] = {
            name: getattr(settings, name).action for name in (NON_FINITE, *self._advice)
        }
        self._told_at: dict[str, float] = {}
        self._active: set[str] = set()
        # Those of them that the log has told of.
        self._told: set[str] = set()
        self._num_rollbacks = 0
        # Times that each was raised in this life.
        self.fired: dict[str, int] = {}
        for name in self._actions:
            # Shown from the start.
            metrics.guard_active(name).set(0)
            metrics.guard_fired(name)
        self.begin()

    @property
    def may_roll_back(self) -> bool:
        return "rollback" in self._actions.values()

    def begin(self) -> None:
        """At the start, and again where the past says nothing about what comes."""
        settings = self._settings
        self._collapse = Collapse(settings.entropy_collapse, self._action)
        self._values = Explosion(settings.value_explosion, "value loss")
        self._gradients = Explosion(settings.gradient_explosion, "gradient norm")
        self._stall = Stall(settings.throughput_stall)
        self._growth = Growth(settings.memory_growth)
        self._unexplained = Unexplained(settings.value_unexplained)
        self._clipped = Clipped(settings.gradients_clipped, self._max_grad_norm)
        self._idle = Idle(settings.no_progress)
        self._fallen = Fallen(settings.return_collapse)

    def step(self, progress: Progress, outcome: StepOutcome) -> None:
        """After a learner step. Raises GuardError or RollBack."""
        now, learner_steps = self._clock(), progress.learner_steps
        self._watch_training(learner_steps, outcome)
        self._stall.batch(learner_steps, now)
        self._settle(ENTROPY, self._collapse.finding)
        self._settle(VALUE, self._values.finding)
        self._settle(GRADIENT, self._gradients.finding)
        self._settle(UNEXPLAINED, self._unexplained.finding)
        self._settle(CLIPPED, self._clipped.finding)
        self._watch_returns(progress)
        self._look_around(learner_steps, now)

    def _watch_training(self, learner_steps: int, outcome: StepOutcome) -> None:
        """Metrics are tensors that the step has already waited for."""
        metrics = outcome.metrics
        value_loss = next((name for name in _VALUE_LOSSES if name in metrics), None)
        if self._is_on(VALUE):
            loss = outcome.loss if value_loss is None else float(metrics[value_loss])
            self._values.add(learner_steps, loss)
        if self._is_on(ENTROPY) and _ENTROPY_METRIC in metrics:
            self._collapse.add(learner_steps, float(metrics[_ENTROPY_METRIC]))
        if self._is_on(UNEXPLAINED) and value_loss is not None and _EXPLAINED_METRIC in metrics:
            explained = float(metrics[_EXPLAINED_METRIC])
            self._unexplained.add(learner_steps, explained, float(metrics[value_loss]))
        self._gradients.add(learner_steps, outcome.grad_norm)
        self._clipped.add(learner_steps, outcome.grad_norm)

    def _watch_returns(self, progress: Progress) -> None:
        if self._is_on(FALLEN):
            self._fallen.look(progress)
        self._settle(FALLEN, self._fallen.finding)
        if self._is_on(IDLE):
            self._idle.look(progress)
        self._settle(IDLE, self._idle.finding)

    def waited(self, learner_steps: int) -> None:
        """While there is nothing to train on, or what there is is too old. Raises GuardError."""
        now = self._clock()
        self._stall.look(learner_steps, now)
        self._look_around(learner_steps, now)

    def non_finite(self, error: NonFiniteError, learner_steps: int) -> RollBack:
        """A step was not taken, or what it made must not get out. Raises the error if that ends the run."""
        self._count(NON_FINITE)
        if self._actions[NON_FINITE] == "stop":
            raise error
        log.warning("%sguard %s: %s", self._metrics.log_label, NON_FINITE, error)
        return self._rollback(NON_FINITE, str(error), learner_steps)

    def _look_around(self, learner_steps: int, now: float) -> None:
        """What does not depend on what is trained."""
        self._settle(THROUGHPUT, self._stall.finding)
        if self._is_on(MEMORY) and self._growth.is_due(now):
            num_bytes = self._memory()
            if num_bytes is not None:
                self._growth.add(learner_steps, now, num_bytes)
        self._settle(MEMORY, self._growth.finding)

    def _settle(self, name: str, finding: Finding | None) -> None:
        """Raise the guard or let it go, if that is news."""
        if not self._is_on(name) or (finding is None) == (name not in self._active):
            return
        if finding is None:
            self._active.discard(name)
            self._metrics.guard_active(name).set(0)
            if name in self._told:
                self._told.discard(name)
                log.info("%sguard %s: all is well again", self._metrics.log_label, name)
            return
        self._active.add(name)
        self._metrics.guard_active(name).set(1)
        self._count(name)
        text = f"guard {name}: {finding.text}. {self._advice[name]}"
        if self._actions[name] == "stop":
            # The others warn of what is in the weights: checkpoints before it are better than one of now.
            raise GuardError(name, text, may_save=name in _MAY_SAVE)
        now = self._clock()
        if now - self._told_at.get(name, now - _TELL_EVERY_S) >= _TELL_EVERY_S:
            self._told_at[name] = now
            self._told.add(name)
            log.warning("%s%s", self._metrics.log_label, text)
        if self._actions[name] == "rollback":
            raise self._rollback(name, text, finding.before_step)

    def _rollback(self, name: str, text: str, before_step: int) -> RollBack:
        most = self._settings.max_rollbacks
        if self._num_rollbacks >= most:
            raise GuardError(name, f"{text} (gone back {most} times already: learner.guards.max_rollbacks)")
        self._num_rollbacks += 1
        for active in self._active:
            self._metrics.guard_active(active).set(0)
        self._active.clear()
        self._told.clear()
        return RollBack(name, before_step)

    def _count(self, name: str) -> None:
        self.fired[name] = self.fired.get(name, 0) + 1
        self._metrics.guard_fired(name).inc()

    def _is_on(self, name: str) -> bool:
        return self._actions[name] != "off"


def resident_bytes() -> int | None:
    """Memory of this process; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return None
