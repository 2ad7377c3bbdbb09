"""What PPO and its asynchronous version share: the clipped objective, and passes over parts of a batch.

An algorithm works out its targets once, before the passes; they travel with the batch under the names below.
The loss is a pure function of them. Training thread.

Legend: T transitions, S = T + 1 rows, B environments, P parameters of the action distribution, A actions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.explained_variance import explained_variance
from shoal.algorithms.settings import ClippedSection
from shoal.algorithms.step_factor import step_factor
from shoal.policy.distributions import Distribution
from shoal.policy.network import ActorCritic, Policy
from shoal.records import ACTION_MASK, LOG_PROB, ArraySpec

# Names of targets, [T, B] each. ADVANTAGE is normalised if the configuration says so; RHO multiplies it after
# that. OLD_* are of the policy that ratios are to, and of the values before the passes.
ADVANTAGE, RETURN, RHO = "advantage", "return", "rho"
OLD_LOG_PROB, OLD_VALUE = "old_log_prob", "old_value"

# exp of it is still finite, also squared. Only a policy that went astray gets there.
_MAX_LOG_RATIO = 20.0
# Passes end when the policy has moved this many times further than asked for.
_KL_TOLERANCE = 1.5
# Of advantages, before they are divided by it.
_LEAST_DEVIATION = 1e-8


class ClippedAlgorithm(Algorithm[ActorCritic]):
    """Several passes over each batch, an optimiser step per part.

    For each of `epochs` the steps of all environments are shuffled anew and split into `minibatches` parts as
    equal as can be. Where the policy has a state, the environments are shuffled instead: a part has whole
    unrolls, so that the policy goes through them from its stored state.

    With `target_kl`, the estimated divergence from the old policy, a mean over the part trained on last and
    before its step, is compared with 1.5 x target_kl; once above it, there are no more passes over the batch.
    """

    behaviour = (ArraySpec(LOG_PROB, "float32", ()),)

    def __init__(self, config: ClippedSection, policy: Policy) -> None:
        assert isinstance(policy, ActorCritic), "the configuration names the kind that the algorithm trains"
        super().__init__(config, policy)
        self._clipped = config
        # Of all steps on the batch, from its advantages on all learners.
        self._step_factor = 1.0
        # Divergence times weight, and weight, of the losses since the last step.
        self._divergence: list[Tensor] = []

    @abstractmethod
    def targets(self, batch: Batch) -> dict[str, Tensor]:
        """By the names above, RHO if there is one. Without gradients."""

    @property
    def recomputes_targets(self) -> bool:
        """Before each epoch, instead of once per batch."""
        return False

    @property
    def value_clip(self) -> float | None:
        """How far values may move from the old ones. None: not limited."""
        return None

    def passes(self, batch: Batch) -> Iterator[Batch]:
        prepared = None
        for _ in range(self._clipped.epochs):
            if prepared is None or self.recomputes_targets:
                prepared = self._prepared(batch)
            order_B = torch.randperm(prepared.num_items).to(batch.weight_B.device)
            # Shuffled once: parts are slices of it.
            shuffled = prepared.take(order_B)
            for start, end in pairwise(self._bounds(prepared.num_items)):
                self._divergence.clear()
                yield shuffled.take(slice(start, end))
                if self._moved_too_far():
                    return

    def loss(self, batch: Batch) -> LossOutput:
        output = clipped_loss(self.policy, batch, self._clipped, self.value_clip)
        if self._clipped.target_kl is not None:
            weight = output.weight
            self._divergence.append(torch.stack([output.metrics["approx_kl"] * weight, weight]))
        return output

    @torch.no_grad()
    def _prepared(self, batch: Batch) -> Batch:
        """With its targets; single steps if the policy has no state."""
        targets = self.targets(batch)
        if self._clipped.normalise_advantages:
            weight_TB = batch.valid_TB * batch.weight_B
            targets[ADVANTAGE], deviation = self._normalised(targets[ADVANTAGE], weight_TB)
            self._step_factor = step_factor(deviation, self._clipped.advantage_noise)
        whole = replace(batch, targets=targets)
        return whole if self.policy.state else whole.as_single_steps()

    def step_factor(self, metrics: dict[str, Tensor]) -> float:
        return self._step_factor

    def _bounds(self, num_items: int) -> list[int]:
        num_parts = min(self._clipped.minibatches, num_items)
        return [num_items * i // num_parts for i in range(num_parts + 1)]

    @torch.no_grad()
    def _normalised(self, advantage_TB: Tensor, weight_TB: Tensor) -> tuple[Tensor, float]:
        """Mean 0 and deviation 1 over the steps that count; and the deviation that they had."""
        # In double precision: a difference of squares follows.
        values_TB, weights_TB = advantage_TB.double(), weight_TB.double()
        weighted_TB = values_TB * weights_TB
        sums = torch.stack([weights_TB.sum(), weighted_TB.sum(), (weighted_TB * values_TB).sum()])
        whole, first, second = self.sum_over_learners(sums).unbind()
        whole = whole.clamp(min=1.0)
        mean = first / whole
        deviation = (second / whole - mean.square()).clamp(min=0.0).sqrt()
        normalised_TB = (values_TB - mean) / (deviation + _LEAST_DEVIATION)
        return normalised_TB.to(advantage_TB.dtype), deviation.item()

    def _moved_too_far(self) -> bool:
        target_kl = self._clipped.target_kl
        if target_kl is None or not self._divergence:
            return False
        sums: list[float] = self.sum_over_learners(torch.stack(self._divergence).sum(0)).tolist()
        divergence, weight = sums
        return divergence / max(weight, 1.0) > _KL_TOLERANCE * target_kl


def clipped_loss(
    policy: ActorCritic, batch: Batch, config: ClippedSection, value_clip: float | None = None
) -> LossOutput:
    """The objective of PPO (Schulman et al. 2017, equations 7 and 9), as a mean over valid steps."""
    params_SBP, value_SB = policy(batch.observation, batch.first_SB, batch.state)
    pi = action_distribution(policy, params_SBP, batch)
    targets, value_TB = batch.targets, batch.at_steps(value_SB)
    valid_TB = batch.valid_TB
    weight_TB = valid_TB * batch.weight_B
    weight = weight_TB.sum()
    num_valid = weight.clamp(min=1e-8)

    # r_t = pi(a_t|x_t) / pi_old(a_t|x_t); 1 where there is no transition.
    log_ratio_TB = pi.log_prob(batch.at_steps(batch.action_SB)) - targets[OLD_LOG_PROB]
    log_ratio_TB = log_ratio_TB.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO) * valid_TB
    ratio_TB = log_ratio_TB.exp()

    # L_clip = min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t)
    advantage_TB = targets[ADVANTAGE]
    if RHO in targets:
        advantage_TB = advantage_TB * targets[RHO]
    clipped_TB = ratio_TB.clamp(1.0 - config.clip, 1.0 + config.clip)
    gain_TB = torch.minimum(ratio_TB * advantage_TB, clipped_TB * advantage_TB)
    policy_loss = -(gain_TB * weight_TB).sum() / num_valid

    # L_VF = (V(x_t) - V_target)^2, of the value that is further off if they are clipped.
    square_TB = (value_TB - targets[RETURN]).square()
    if value_clip is not None:
        moved_TB = (value_TB - targets[OLD_VALUE]).clamp(-value_clip, value_clip)
        square_TB = torch.maximum(square_TB, (targets[OLD_VALUE] + moved_TB - targets[RETURN]).square())
    value_loss = 0.5 * (square_TB * weight_TB).sum() / num_valid

    # Without gradients where it is only looked at.
    with torch.set_grad_enabled(torch.is_grad_enabled() and config.entropy_cost > 0):
        entropy = (pi.entropy() * weight_TB).sum() / num_valid

    loss = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    with torch.no_grad():
        old_error_TB = targets[RETURN] - targets[OLD_VALUE]
        metrics = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            # KL(pi_old || pi) from samples of pi_old: E[(r - 1) - log r], which is never negative.
            "approx_kl": ((ratio_TB - 1.0 - log_ratio_TB) * weight_TB).sum() / num_valid,
            "clip_fraction": ((ratio_TB != clipped_TB) * weight_TB).sum() / num_valid,
            # Of the values before the passes: what they make of data that they have not been fitted to.
            "explained_variance": explained_variance(old_error_TB, targets[RETURN], weight_TB),
        }
    return LossOutput(loss, metrics, weight)


def action_distribution(policy: ActorCritic, params_SBP: Tensor, batch: Batch) -> Distribution:
    """Over the actions of the rows in which some were taken."""
    mask_SBA = batch.observation.get(ACTION_MASK)
    return policy.distribution(
        batch.at_steps(params_SBP), None if mask_SBA is None else batch.at_steps(mask_SBA)
    )
