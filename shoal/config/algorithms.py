"""Hyperparameters of the algorithms, a section each. No torch: every service can read them.

`shoal.algorithms` has a folder of the same name for each. What all have in common is in `AlgorithmSection`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from shoal.config.section import Section


class AlgorithmSection(Section):
    """What all algorithms have: the optimiser, and what is done to rewards before anything else."""

    # The kind of policy.
    trains: ClassVar[str]

    learning_rate: float = Field(1e-3, gt=0, le=1, description="Adam's step size.")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the step size falls to 0 over `stop.steps`."
    )
    learning_rate_scaling: Literal["none", "sqrt", "linear"] = Field(
        "none",
        description="The step size grows with (effective batch / reference_batch), or with its square root.",
    )
    reference_batch: int = Field(
        256, ge=1, description="Steps of a batch that `learning_rate` is meant for, if it is scaled."
    )
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


class ActorCriticSection(AlgorithmSection):
    """What the algorithms have that train an `actor_critic`."""

    trains = "actor_critic"

    value_cost: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_cost: float = Field(0.01, ge=0, description="Weight of the entropy bonus.")


class ImpalaConfig(ActorCriticSection):
    """IMPALA with V-trace (Espeholt et al. 2018)."""

    name: Literal["impala"] = Field("impala", description="The algorithm.")
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")


class ClippedSection(ActorCriticSection):
    """What both kinds of PPO have: several passes over a batch, and a ratio that is clipped."""

    clip: float = Field(0.2, gt=0, lt=1, description="Ratios of new to old policy are clipped to 1 +- this.")
    epochs: int = Field(4, ge=1, le=1000, description="Passes over each batch.")
    minibatches: int = Field(
        4, ge=1, le=1 << 16, description="Parts of a batch, an optimiser step each; split by environments."
    )
    target_kl: float | None = Field(
        None,
        gt=0,
        description="No more passes over a batch once the policy has moved 1.5 times this far (KL).",
    )
    normalise_advantages: bool = Field(True, description="Advantages of each part get mean 0, deviation 1.")


class PpoConfig(ClippedSection):
    """PPO with GAE (Schulman et al. 2017, 2016)."""

    name: Literal["ppo"] = Field("ppo", description="The algorithm.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Lambda of generalised advantage estimation.")
    value_clip: float | None = Field(
        None, gt=0, description="New values are clipped to the old ones +- this. `null`: not at all."
    )
    synchronous: bool = Field(
        True, description="Actors wait for the newest version before each unroll: all data are on-policy."
    )
    max_wait_s: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="Longest such wait (s). Then the actor acts on with the newest version there is, so that "
        "an unroll that was lost with a replay shard is not waited for for ever. Well above what training on "
        "a batch takes, and the slowest actor for an unroll: else unrolls are made in vain.",
    )


class AppoConfig(ClippedSection):
    """Asynchronous PPO: PPO's clipped objective with V-trace targets, on data of older policies."""

    name: Literal["appo"] = Field("appo", description="The algorithm.")
    epochs: int = Field(2, ge=1, le=1000, description="Passes over each batch.")
    minibatches: int = Field(
        2, ge=1, le=1 << 16, description="Parts of a batch, an optimiser step each; split by environments."
    )
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Lambda that scales the trace coefficients c.")
    rho_clip: float = Field(1.0, gt=0, description="Clip of the importance weights rho.")
    c_clip: float = Field(1.0, gt=0, description="Clip of the trace weights c.")


class ReplayedSection(AlgorithmSection):
    """What the algorithms have that learn from what they sample again and again."""

    n_step: int = Field(
        1, ge=1, le=1024, description="Steps of reward before the bootstrap, within an item and an episode."
    )
    importance_exponent: float = Field(
        0.4, ge=0, le=1, description="Beta: how far the bias of prioritised sampling is corrected."
    )


class ApexConfig(ReplayedSection):
    """Ape-X DQN: double, n-step, prioritised (Horgan et al. 2018)."""

    trains = "q"

    name: Literal["apex"] = Field("apex", description="The algorithm.")
    n_step: int = Field(
        3, ge=1, le=1024, description="Steps of reward before the bootstrap, within an item and an episode."
    )
    double: bool = Field(True, description="The network chooses the next action, its target values it.")
    target_every: int = Field(
        500, ge=1, le=1 << 30, description="Learner steps between two copies into the target network."
    )
    huber_delta: float = Field(1.0, gt=0, description="Errors above this count linearly, not squared.")


class R2d2Config(ReplayedSection):
    """R2D2: recurrent replay from stored states with burn-in (Kapturowski et al. 2019)."""

    trains = "q"

    name: Literal["r2d2"] = Field("r2d2", description="The algorithm.")
    n_step: int = Field(
        5, ge=1, le=1024, description="Steps of reward before the bootstrap, within an item and an episode."
    )
    double: bool = Field(True, description="The network chooses the next action, its target values it.")
    burn_in: int = Field(
        0, ge=0, le=10_000, description="First steps of a sequence that only warm up the recurrent state."
    )
    rescale_epsilon: float = Field(
        1e-3, ge=0, le=1, description="Epsilon of the value rescaling h; 0: values are not rescaled."
    )
    priority_max_share: float = Field(
        0.9,
        ge=0,
        le=1,
        description="Eta: share of the largest error in a sequence's priority, beside the mean.",
    )
    target_every: int = Field(
        500, ge=1, le=1 << 30, description="Learner steps between two copies into the target network."
    )


class ContinuousSection(ReplayedSection):
    """What SAC and TD3 have in common."""

    learning_rate: float = Field(3e-4, gt=0, le=1, description="Adam's step size, of actor and critics.")
    max_grad_norm: float = Field(1e9, gt=0, description="Gradients are scaled down to this norm.")
    target_rate: float = Field(
        0.005, gt=0, le=1, description="Tau: part of the way that targets go to the networks at each step."
    )


class SacConfig(ContinuousSection):
    """SAC with an automatic temperature and twin critics (Haarnoja et al. 2018)."""

    trains = "soft_actor_critic"

    name: Literal["sac"] = Field("sac", description="The algorithm.")
    initial_temperature: float = Field(1.0, gt=0, description="Alpha at the beginning.")
    learn_temperature: bool = Field(True, description="Alpha follows the target entropy.")
    temperature_learning_rate: float = Field(3e-4, gt=0, le=1, description="Adam's step size of alpha.")
    target_entropy: float | None = Field(
        None,
        description="Entropy that alpha keeps the policy at, of actions in half widths of bounds; `null`: "
        "minus the elements of an action.",
    )


class Td3Config(ContinuousSection):
    """TD3: twin critics, delayed policy, smoothed targets (Fujimoto et al. 2018)."""

    trains = "deterministic"

    name: Literal["td3"] = Field("td3", description="The algorithm.")
    policy_delay: int = Field(2, ge=1, le=1000, description="Critic steps per step of policy and targets.")
    target_noise: float = Field(
        0.2,
        ge=0,
        le=10,
        description="Deviation of the noise on target actions, in half widths of bounds.",
    )
    target_noise_clip: float = Field(0.5, ge=0, le=10, description="That noise is clipped to +- this.")


AnyAlgorithm = Annotated[
    ImpalaConfig | PpoConfig | AppoConfig | ApexConfig | R2d2Config | SacConfig | Td3Config,
    Field(discriminator="name"),
]


def is_synchronous(algorithm: AnyAlgorithm) -> bool:
    """Whether actors wait for the newest version, and the learner trains on nothing else."""
    return isinstance(algorithm, PpoConfig) and algorithm.synchronous
