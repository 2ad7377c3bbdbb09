"""What the learner watches itself for, a section each. `services.learner.guards` reads it; no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from shoal.section import Section


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class NonFiniteGuard(Section):
    """NaN or infinity in losses, gradients or weights. It cannot be switched off: nothing of it gets out."""

    action: Literal["stop", "rollback"] = Field(
        "stop", description="End the run, or go on from the last checkpoint before it."
    )


class TrainingGuard(Section):
    """One that may go back: what it sees is in the weights."""

    action: Annotated[Literal["off", "warn", "stop", "rollback"], BeforeValidator(_off)] = Field(
        "warn", description="What to do: nothing, tell, end the run, or go back to a checkpoint before it."
    )


class EntropyCollapse(TrainingGuard):
    """The policy has stopped to explore."""

    fraction: float = Field(
        0.005,
        gt=0,
        lt=1,
        description="It has collapsed below this part of the largest entropy that there can be; of "
        "continuous actions, of the largest width so far that they were drawn from.",
    )
    for_steps: int = Field(1000, ge=1, description="Learner steps in a row that it must have lasted.")


class ExplosionGuard(TrainingGuard):
    """A value that leaves the range where it was, for more than a few steps."""

    factor: float = Field(
        100.0, gt=1, description="Times its running median that the median of 16 learner steps may reach."
    )
    at_least: float = Field(
        100.0, ge=0, description="Below this it is never too large: small values may grow a lot."
    )


class SystemGuard(Section):
    """One that there is no use in going back for."""

    action: Annotated[Literal["off", "warn", "stop"], BeforeValidator(_off)] = Field(
        "warn", description="What to do: nothing, tell, or save and end the run."
    )


class ThroughputStall(SystemGuard):
    """Training has become slow, or stands still."""

    no_batch_s: float = Field(
        60.0, gt=0, description="Time without a batch (s), if it is also 5 times the usual."
    )
    fraction: float = Field(
        0.1, gt=0, lt=1, description="Part of the best speed so far that it must not fall below."
    )
    window_s: float = Field(30.0, gt=0, description="Time that a speed is a mean over (s).")


class MemoryGrowth(SystemGuard):
    """The learner's own memory grows and grows."""

    mib_per_minute: float = Field(50.0, gt=0, description="Growth that is too much (MiB per minute).")
    warmup_s: float = Field(120.0, ge=0, description="Time at the beginning that is not looked at (s).")
    window_s: float = Field(300.0, gt=0, description="Time that growth is measured over (s).")
    max_mib: float | None = Field(None, gt=0, description="Memory that is too much in any case (MiB).")


class ValueUnexplained(SystemGuard):
    """The value function explains nothing of its targets, and they are large."""

    fraction: float = Field(
        0.05, gt=0, lt=0.5, description="Part of the targets' variance that must be explained."
    )
    at_least: float = Field(
        3.0,
        gt=0,
        description="Errors (root mean square) below this do not count: values of the order of 1 are learnt "
        "in time.",
    )
    for_steps: int = Field(200, ge=1, description="Learner steps in a row that it must have lasted.")


class GradientsClipped(SystemGuard):
    """Gradients are cut down by a large factor at nearly every step."""

    factor: float = Field(
        20.0,
        gt=1,
        description="Times `algorithm.max_grad_norm` that the gradient's norm may be all the time.",
    )
    for_steps: int = Field(200, ge=1, description="Learner steps in a row that it must have lasted.")


class NoProgress(SystemGuard):
    """The return is not above the untrained policy's."""

    after_env_steps: int = Field(
        500_000, ge=1, description="Environment steps of the run that are not judged."
    )
    standard_errors: float = Field(
        3.0,
        gt=0,
        description="How far the mean return of 100 episodes must be above the untrained policy's, in "
        "standard errors of the difference. A run that ends below says that it has not learned.",
    )


class ReturnCollapse(TrainingGuard):
    """The return has fallen far from its best."""

    fraction: float = Field(
        0.5, gt=0, lt=1, description="Part of the best gain over the untrained policy that may be lost."
    )
    for_env_steps: int = Field(
        20_000, ge=1, description="Environment steps in a row that it must have lasted."
    )
    standard_errors: float = Field(
        3.0, gt=0, description="What is gained or lost counts if it is at least so many standard errors."
    )


class GuardsSection(Section):
    """Named warnings, and what to do about them."""

    max_rollbacks: int = Field(
        3, ge=0, le=1_000_000, description="Times that a life of the learner goes back before it ends."
    )
    non_finite: NonFiniteGuard = Field(NonFiniteGuard(), description="NaN or infinity.")
    entropy_collapse: EntropyCollapse = Field(EntropyCollapse(), description="The policy has no doubts left.")
    value_explosion: ExplosionGuard = Field(ExplosionGuard(), description="The value loss is far too large.")
    gradient_explosion: ExplosionGuard = Field(
        ExplosionGuard(), description="The gradient's norm, before clipping, is far too large."
    )
    throughput_stall: ThroughputStall = Field(ThroughputStall(), description="Training is slow or stands.")
    memory_growth: MemoryGrowth = Field(MemoryGrowth(), description="The process's memory grows.")
    value_unexplained: ValueUnexplained = Field(
        ValueUnexplained(), description="The values explain nothing of their targets."
    )
    gradients_clipped: GradientsClipped = Field(
        GradientsClipped(), description="Nearly every gradient is cut down to a small part."
    )
    no_progress: NoProgress = Field(
        NoProgress(), description="The return is not above the untrained policy's."
    )
    return_collapse: ReturnCollapse = Field(
        ReturnCollapse(), description="The return has fallen far from its best."
    )
