"""What guards look for in what is learnt: values, gradients and returns. Pure, as `detectors`.

Each keeps `finding`: what is wrong at present, or None. What is raised under one limit is let go beyond
another: values at the limit do not make it come and go. Training thread only; no torch.
"""

from __future__ import annotations

import math
import statistics

from services.learner.detectors import BLOCK, Finding
from services.learner.progress import WINDOW, Progress
from services.learner.returns import standard_errors_above
from shoal.config.guards import GradientsClipped, NoProgress, ReturnCollapse, ValueUnexplained

# Returns are looked at again when so many episodes have come.
_EPISODES = WINDOW // 10
# What is let go is this much beyond the limit that it was raised at.
_BEYOND = 2.0


class _Lasting:
    """Something that counts when it has lasted, and from then on until it is clearly over."""

    def __init__(self, for_steps: int) -> None:
        self._for_steps = for_steps
        self._since: int | None = None
        self.is_raised = False

    def add(self, step: int, *, is_bad: bool, is_well: bool) -> int:
        """Steps that it has lasted. In between, what is raised stays and what is not starts anew."""
        if is_well or not (is_bad or self.is_raised):
            self._since, self.is_raised = None, False
            return 0
        if self._since is None:
            self._since = step
        lasted = step - self._since
        self.is_raised = self.is_raised or lasted >= self._for_steps
        return lasted


class Unexplained:
    """Values that are far off their targets and explain nothing of their variance.

    Targets of the order of 1 are learnt in time, and where all targets are alike there is nothing to explain:
    neither counts.
    """

    def __init__(self, settings: ValueUnexplained) -> None:
        self._settings = settings
        self._lasting = _Lasting(settings.for_steps)
        self._explained: list[float] = []
        self._errors: list[float] = []
        self.finding: Finding | None = None

    def add(self, step: int, explained_variance: float, value_loss: float) -> None:
        """`value_loss` is half the mean square of the errors."""
        self._explained.append(explained_variance)
        self._errors.append(math.sqrt(2 * max(value_loss, 0.0)))
        if len(self._errors) < BLOCK:
            return
        explained, error = statistics.median(self._explained), statistics.median(self._errors)
        self._explained.clear()
        self._errors.clear()
        fraction, at_least = self._settings.fraction, self._settings.at_least
        lasted = self._lasting.add(
            step,
            is_bad=explained < fraction and error > at_least,
            is_well=explained > _BEYOND * fraction or error < at_least / _BEYOND,
        )
        text = (
            f"the values explain {100 * max(explained, 0.0):.0f} % of the variance of their targets (limit "
            f"{100 * fraction:g} %) and are off by {error:.3g} (limit {at_least:g}), for {lasted} steps"
        )
        self.finding = Finding(text, step) if self._lasting.is_raised else None


class Clipped:
    """Gradients that are cut down to a small part of themselves at nearly every step.

    Adam hides the size of a gradient but not its make-up: what is large, often the value loss, leaves
    nothing of the rest.
    """

    def __init__(self, settings: GradientsClipped, max_grad_norm: float) -> None:
        self._settings = settings
        self._max_grad_norm = max_grad_norm
        self._lasting = _Lasting(settings.for_steps)
        self._block: list[float] = []
        self.finding: Finding | None = None

    def add(self, step: int, grad_norm: float) -> None:
        self._block.append(grad_norm / self._max_grad_norm)
        if len(self._block) < BLOCK:
            return
        factors = sorted(self._block)
        self._block.clear()
        median, factor = statistics.median(factors), self._settings.factor
        # All but one of a block.
        lasted = self._lasting.add(step, is_bad=factors[1] > factor, is_well=median <= factor)
        text = (
            f"gradients have been cut down at nearly every one of the last {lasted} learner steps, now to "
            f"1/{median:.0f} (limit 1/{factor:g}): their norm is {median * self._max_grad_norm:.3g}, "
            f"algorithm.max_grad_norm {self._max_grad_norm:g}"
        )
        self.finding = Finding(text, step) if self._lasting.is_raised else None


class Idle:
    """A return that is still not above the untrained policy's: noise is not learning."""

    def __init__(self, settings: NoProgress) -> None:
        self._settings = settings
        self._num_seen = 0
        self.finding: Finding | None = None

    def look(self, progress: Progress) -> None:
        if (
            progress.env_steps < self._settings.after_env_steps
            or progress.num_episodes < self._num_seen + _EPISODES
        ):
            return
        self._num_seen = progress.num_episodes
        newest, untrained = progress.newest, progress.untrained
        above = standard_errors_above(newest, untrained)
        limit = self._settings.standard_errors
        # To be let go it has to be further above than it had to be not to be raised.
        if above is None or above >= limit * (1 if self.finding is None else _BEYOND):
            self.finding = None
            return
        text = (
            f"the mean return of {newest.num} episodes is {newest.mean:.4g} after {progress.env_steps:,} "
            f"environment steps, the untrained policy's was {untrained.mean:.4g}: a gain of {above:.1f} "
            f"standard errors (limit {limit:g})"
        )
        self.finding = Finding(text, progress.learner_steps)


class Fallen:
    """A mean return that has lost most of what it had gained over the untrained policy."""

    def __init__(self, settings: ReturnCollapse) -> None:
        self._settings = settings
        self._lasting = _Lasting(settings.for_env_steps)
        self._num_seen = 0
        # The newest learner step at which the return was near its best.
        self._well_at: int | None = None
        self.finding: Finding | None = None

    def look(self, progress: Progress) -> None:
        best, untrained = progress.best, progress.untrained
        if best is None or progress.num_episodes < self._num_seen + _EPISODES:
            return
        self._num_seen = progress.num_episodes
        recent, errors = progress.recent, self._settings.standard_errors
        gained = standard_errors_above(best.returns, untrained)
        lost = standard_errors_above(best.returns, recent)
        if gained is None or lost is None or gained < _BEYOND * errors:
            # What was never learnt cannot be lost. The best of many windows is a lucky one: hence the factor.
            return
        height = best.returns.mean - untrained.mean
        limit = best.returns.mean - self._settings.fraction * height
        is_well = recent.mean > best.returns.mean - self._settings.fraction / _BEYOND * height
        if is_well:
            self._well_at = progress.learner_steps
        lasted = self._lasting.add(
            progress.env_steps, is_bad=recent.mean < limit and lost >= errors, is_well=is_well
        )
        text = (
            f"the mean return of {recent.num} episodes is {recent.mean:.4g} (limit {limit:.4g}) and was "
            f"{best.returns.mean:.4g} at learner step {best.learner_step}, the untrained policy's was "
            f"{untrained.mean:.4g}; it has been low for {lasted:,} environment steps"
        )
        before = best.learner_step if self._well_at is None else self._well_at
        self.finding = Finding(text, before) if self._lasting.is_raised else None
