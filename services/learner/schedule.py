"""The learning rate: how it falls over the run, and how it grows with the batch. Pure functions; no torch.

The effective batch is what one step of the optimiser averages over, on all learners together. Accumulation
(`learner.accumulate`) splits it in time and learners split it in space: neither makes it larger. PPO's
minibatches make it smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shoal.config import Config

# Of a schedule, in a run that nobody has set an end to.
USUAL_STEPS = 1_000_000

Schedule = Literal["constant", "linear", "cosine"]
Scaling = Literal["none", "sqrt", "linear"]


@dataclass(frozen=True)
class EffectiveBatch:
    """Environments times steps, divided by the parts that are trained on one after another."""

    num_envs: int
    length: int
    num_parts: int = 1

    @property
    def num_steps(self) -> int:
        return max(1, self.num_envs * self.length // self.num_parts)

    def describe(self) -> str:
        parts = f" / {self.num_parts} minibatches" if self.num_parts > 1 else ""
        return f"{self.num_steps:,} steps ({self.num_envs:,} envs x {self.length:,} steps{parts})"


def effective_batch(config: Config, length: int) -> EffectiveBatch:
    """`length`: T of the items of a batch."""
    algorithm = config.algorithm
    return EffectiveBatch(
        config.learner.batch_envs, length - algorithm.num_warmup_rows, algorithm.num_minibatches
    )


def schedule_length(config: Config) -> int:
    """Environment steps that schedules take."""
    return config.algorithm.schedule_steps or config.stop.steps or USUAL_STEPS


def scheduled(schedule: Schedule, share_done: float, end: float = 0.0) -> float:
    """From 1 at the beginning of the schedule to `end` at its end, and there ever after."""
    share_done = min(max(share_done, 0.0), 1.0)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            share_left = 1.0 - share_done
        case "cosine":
            share_left = 0.5 * (1.0 + math.cos(math.pi * share_done))
    return end + (1.0 - end) * share_left


def scaled(scaling: Scaling, num_steps: int, reference_batch: int) -> float:
    """Linear: Goyal et al. 2017. With the square root: as the noise of the gradient falls."""
    ratio = num_steps / reference_batch
    match scaling:
        case "none":
            return 1.0
        case "sqrt":
            return math.sqrt(ratio)
        case "linear":
            return ratio


class LearningRate:
    """Of one run. `base` and `factor` multiply to what Adam steps with."""

    def __init__(self, config: Config, length: int) -> None:
        algorithm = config.algorithm
        self.base = algorithm.learning_rate
        self.batch = effective_batch(config, length)
        self._schedule = algorithm.learning_rate_schedule
        self._end = algorithm.learning_rate_end
        self._ratio = algorithm.update_ratio
        self._num_steps = schedule_length(config)
        self._scale = scaled(algorithm.learning_rate_scaling, self.batch.num_steps, algorithm.reference_batch)

    def factor(self, env_steps: int) -> float:
        """After so many steps of the run, those before restarts too."""
        return self._scale * scheduled(self._schedule, env_steps / self._num_steps, self._end)

    def describe(self) -> str:
        falls = ""
        if self._schedule != "constant":
            falls = f", {self._schedule} to {self._end:.0%} of it at {self._num_steps:,} steps"
        kept = "" if self._ratio is None else f", {self._ratio:g} learner steps per environment step"
        return (
            f"effective batch {self.batch.describe()}, learning rate {self.base:g} x {self._scale:.2f}"
            f"{falls}{kept}"
        )


class ImportanceExponent:
    """Beta of prioritised sampling, which moves evenly from its first to its last value. Event loop only."""

    def __init__(self, config: Config) -> None:
        self._start, self._end = config.algorithm.betas
        self._num_steps = schedule_length(config)
        # Of the run so far, those before restarts too.
        self.env_steps = 0

    def __call__(self, num_batches: int) -> float:
        """As a sampler asks for it; how many batches there were does not matter."""
        share_done = min(1.0, self.env_steps / self._num_steps)
        return self._start + (self._end - self._start) * share_done
