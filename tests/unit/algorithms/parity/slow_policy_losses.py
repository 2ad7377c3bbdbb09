"""The losses of IMPALA and PPO for a categorical policy, summed step by step.

As documented, sums of the papers are means over the steps that count: transitions that are not too old.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


def log_softmax(logits: Sequence[float]) -> list[float]:
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


@dataclass(frozen=True)
class Step:
    """One transition: log pi of all actions, the one taken, V, its target, and what came of acting.

    `old_log_prob` is of the policy that acted, `old_value` is V before the passes over the batch.
    """

    log_pi: Sequence[float]
    action: int
    value: float
    target: float
    advantage: float
    old_log_prob: float
    old_value: float

    @property
    def log_prob(self) -> float:
        return self.log_pi[self.action]

    @property
    def entropy(self) -> float:
        return -sum(math.exp(log) * log for log in self.log_pi)


def impala(steps: Sequence[Step], value_cost: float, entropy_cost: float) -> dict[str, float]:
    """Espeholt et al. 2018, section 4.2; targets and advantages are V-trace's."""
    num = len(steps)
    policy_loss = sum(-step.advantage * step.log_prob for step in steps) / num
    value_loss = sum(0.5 * (step.target - step.value) ** 2 for step in steps) / num
    entropy = sum(step.entropy for step in steps) / num
    loss = policy_loss + value_cost * value_loss - entropy_cost * entropy
    return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


def normalised(steps: Sequence[Step]) -> list[Step]:
    """A documented departure from the paper: advantages of the batch get mean 0 and deviation 1."""
    mean = sum(step.advantage for step in steps) / len(steps)
    deviation = math.sqrt(sum((step.advantage - mean) ** 2 for step in steps) / len(steps))
    return [replace(step, advantage=(step.advantage - mean) / deviation) for step in steps]


def ppo(
    steps: Sequence[Step], clip: float, value_clip: float | None, value_cost: float, entropy_cost: float
) -> dict[str, float]:
    """Schulman et al. 2017, equations 7 and 9; V has half the squared error.

    `value_clip` keeps V within that distance of the old one and counts the larger error, as in the authors'
    code.
    """
    gain = error = entropy = kl = num_clipped = 0.0
    for step in steps:
        ratio = math.exp(step.log_prob) / math.exp(step.old_log_prob)
        limited = max(1.0 - clip, min(1.0 + clip, ratio))
        gain += min(ratio * step.advantage, limited * step.advantage)
        square = (step.value - step.target) ** 2
        if value_clip is not None:
            near = step.old_value + max(-value_clip, min(value_clip, step.value - step.old_value))
            square = max(square, (near - step.target) ** 2)
        error += 0.5 * square
        entropy += step.entropy
        kl += (ratio - 1.0) - math.log(ratio)
        num_clipped += ratio != limited
    num = len(steps)
    return {
        "loss": (-gain + value_cost * error - entropy_cost * entropy) / num,
        "policy_loss": -gain / num,
        "value_loss": error / num,
        "entropy": entropy / num,
        "approx_kl": kl / num,
        "clip_fraction": num_clipped / num,
    }
