"""Hyperparameters that several algorithms share. No torch: every service reads them.

Each algorithm's own section is in its folder, in `profile.py`. What other parts of shoal need to know about
an algorithm is asked here: nothing else looks at the type of a section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from shoal.section import Section


@dataclass(frozen=True)
class InitialPriority:
    """What the priority of a new item is made of, from the Q values that the policy gave."""

    n_step: int
    discount: float
    # Epsilon of the value rescaling h; 0: values are not rescaled.
    rescale_epsilon: float = 0.0
    # Eta: the share of a sequence's largest error, beside the mean.
    max_share: float = 0.0
    burn_in: int = 0


class AlgorithmSection(Section):
    """What all algorithms have: the optimiser, and what is done to rewards before anything else."""

    # The kind of policy that it trains.
    trains: ClassVar[str]
    # Kinds of tables that it can learn from, the usual one first.
    learns_from: ClassVar[tuple[str, ...]]
    # It learns from data of any policy, again and again.
    replays: ClassVar[bool] = False
    # The key of `exploration` that explores, for policies without randomness of their own.
    explores_by: ClassVar[str | None] = None

    learning_rate: float = Field(1e-3, gt=0, le=1, description="The optimiser's step size.")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="How the step size falls over `schedule_steps`.",
    )
    schedule_steps: int | None = Field(
        None,
        ge=1,
        description="Environment steps that schedules take; `null`: `stop.steps`, or a million where that is "
        "not set.",
    )
    learning_rate_end: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Part of the step size that is left at the end of its schedule, and ever after.",
    )
    learning_rate_scaling: Literal["none", "sqrt", "linear"] = Field(
        "none",
        description="The step size grows with (effective batch / reference_batch), or with its square root.",
    )
    reference_batch: int = Field(
        256, ge=1, description="Steps of a batch that `learning_rate` is meant for, if it is scaled."
    )
    optimiser: Literal["adam", "adamw", "rmsprop"] = Field(
        "adam",
        description="As in torch. A run that changes it starts with new moments.",
    )
    optimiser_epsilon: float = Field(
        1e-8, gt=0, le=1, description="Added to the root that steps are divided by."
    )
    adam_beta_1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients: adam, adamw.")
    adam_beta_2: float = Field(
        0.999, ge=0, lt=1, description="Decay of the mean of squared gradients: adam, adamw."
    )
    weight_decay: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Part of each weight, times the step size, that a step takes off: adamw.",
    )
    rms_decay: float = Field(0.99, ge=0, lt=1, description="Decay of the mean of squared gradients: rmsprop.")
    rms_momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of steps: rmsprop.")
    max_grad_norm: float = Field(0.5, gt=0, description="Gradients are scaled down to this norm.")
    discount: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    reward_scale: float = Field(
        1.0, gt=0, description="Rewards are multiplied by this; best when values are of the order of 1 to 10."
    )
    reward_clip: float | None = Field(
        None, gt=0, description="Rewards are clipped to [-clip, clip] before they are scaled."
    )
    reward_symlog: bool = Field(
        False, description="Rewards become sign(r) log(1 + |r|), before they are clipped and scaled."
    )
    normalise_returns: bool = Field(
        False,
        description="Rewards are divided by the running root mean square of discounted returns, before they "
        "are scaled, and then clipped to +-10.",
    )

    @property
    def is_synchronous(self) -> bool:
        """Whether actors wait for the newest version, and the learner trains on nothing else."""
        return False

    @property
    def learner_cpus(self) -> float:
        """Part of the CPUs that training computes on, unless `learner.threads` says otherwise.

        All of them if acting waits meanwhile, or is little work: each transition is trained on many times.
        """
        return 1.0 if self.replays or self.is_synchronous else 0.5

    @property
    def inference_cpus(self) -> float:
        """Part of the CPUs that acting computes on: all of them if training waits meanwhile."""
        return 1.0 if self.is_synchronous else 0.5

    @property
    def version_wait_s(self) -> float:
        """Longest wait of an actor for the next version, before each unroll; 0: it never waits."""
        return 0.0

    @property
    def num_minibatches(self) -> int:
        """Parts of a batch, with an optimiser step each."""
        return 1

    @property
    def reward_steps(self) -> int:
        """Steps of reward before the bootstrap, of algorithms that fix them."""
        return 1

    @property
    def num_warmup_rows(self) -> int:
        """First steps of a sequence that no loss is computed on."""
        return 0

    @property
    def update_ratio(self) -> float | None:
        """Learner steps per environment step that are kept; None: no ratio is."""
        return None

    @property
    def betas(self) -> tuple[float, float]:
        """How far the bias of prioritised sampling is corrected, first and at the end of schedules."""
        return 0.0, 0.0

    @property
    def initial_priority(self) -> InitialPriority | None:
        """How an actor ranks what it hands over; None: the table's highest priority stands for it."""
        return None


class ActorCriticSection(AlgorithmSection):
    """What the algorithms have that train an `actor_critic`."""

    trains = "actor_critic"
    learns_from: ClassVar[tuple[str, ...]] = ("queue",)

    value_cost: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_cost: float = Field(0.01, ge=0, description="Weight of the entropy bonus.")
    advantage_noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Deviation of advantages that means nothing, as a part of the size of returns "
        "(`normalise_returns`). Where d is what they deviate by, steps shrink to d^2 / (d^2 + this^2): a "
        "policy with nothing left to learn must not follow noise.",
    )


class ClippedSection(ActorCriticSection):
    """What both kinds of PPO have: several passes over a batch, and a ratio that is clipped."""

    clip: float = Field(0.2, gt=0, lt=1, description="Ratios of new to old policy are clipped to 1 +- this.")
    epochs: int = Field(4, ge=1, le=1000, description="Passes over each batch.")
    minibatches: int = Field(
        4,
        ge=1,
        le=1 << 16,
        description="Parts of a batch, an optimiser step each: of its steps, or of its environments if the "
        "policy has a state.",
    )
    target_kl: float | None = Field(
        None,
        gt=0,
        description="No more passes over a batch once the policy has moved 1.5 times this far (KL).",
    )
    normalise_advantages: bool = Field(True, description="Advantages of each batch get mean 0, deviation 1.")

    @property
    def num_minibatches(self) -> int:
        return self.minibatches


class ReplayedSection(AlgorithmSection):
    """What the algorithms have that learn from what they sample again and again."""

    learns_from: ClassVar[tuple[str, ...]] = ("transition", "sequence")
    replays = True

    updates_per_step: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="Learner steps per environment step; whoever is ahead waits. The table's "
        "`samples_per_insert` follows from it, unless that is set. `null`: no ratio is kept.",
    )
    n_step: int = Field(
        1, ge=1, le=1024, description="Steps of reward before the bootstrap, within an item and an episode."
    )
    importance_exponent: float = Field(
        0.4,
        ge=0,
        le=1,
        description="Beta: how far the bias of prioritised sampling is corrected at the start.",
    )
    importance_exponent_end: float = Field(
        1.0,
        ge=0,
        le=1,
        description="The same at the end of `schedule_steps`, and ever after; in between it moves evenly.",
    )

    @property
    def reward_steps(self) -> int:
        return self.n_step

    @property
    def update_ratio(self) -> float | None:
        return self.updates_per_step

    @property
    def betas(self) -> tuple[float, float]:
        return self.importance_exponent, self.importance_exponent_end


class ContinuousSection(ReplayedSection):
    """What SAC and TD3 have in common."""

    learning_rate: float = Field(
        3e-4, gt=0, le=1, description="The optimiser's step size, of actor and critics."
    )
    max_grad_norm: float = Field(1e9, gt=0, description="Gradients are scaled down to this norm.")
    target_rate: float = Field(
        0.005, gt=0, le=1, description="Tau: part of the way that targets go to the networks at each step."
    )
