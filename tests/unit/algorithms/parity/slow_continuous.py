"""The losses of SAC and TD3 for given noise, summed step by step.

Actions are in half widths of their bounds, -1 to 1, as documented: densities and noise are too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.unit.algorithms.parity.slow_targets import Stream, n_step

Action = list[float]
# Q of a row of an environment and an action: q(row, env, action).
Critic = Callable[[int, int, Action], float]
Result = dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """What was sampled: T steps of each environment, the actions taken [T][B], and how returns are made."""

    streams: Sequence[Stream]
    taken: Sequence[Sequence[Action]]
    n: int
    gamma: float

    def mean(self, value_of: Callable[[int, int], float]) -> float:
        """Weights scale the value of each step (t, b); the mean is over the number of those that count."""
        places = [(t, b) for b, stream in enumerate(self.streams) for t in stream.transitions]
        num = sum(self.streams[b].weight > 0 for _, b in places)
        return sum(self.streams[b].weight * value_of(t, b) for t, b in places) / num


def critic_part(sampled: Sampled, critics: Sequence[Critic], value_of: Callable[[int, int], float]) -> Result:
    """Half the squared errors of both critics against r + gamma V(s'); priorities are their mean sizes."""

    def errors(t: int, b: int) -> list[float]:
        total, worth, row = n_step(sampled.streams[b], t, sampled.n, sampled.gamma)
        target = total + worth * value_of(row, b)
        return [critic(t, b, sampled.taken[t][b]) - target for critic in critics]

    priorities = []
    for b, stream in enumerate(sampled.streams):
        sizes = [abs(error) for t in stream.transitions for error in errors(t, b)]
        priorities.append(sum(sizes) / len(sizes))
    loss = sampled.mean(lambda t, b: sum(0.5 * error**2 for error in errors(t, b)))
    return {"critic_loss": loss, "priority": priorities}


def squashed(mean: Sequence[float], spread: Sequence[float], noise: Sequence[float]) -> tuple[Action, float]:
    """a = tanh(u), u = mean + deviation * noise, with log pi(a) of Haarnoja et al. 2018, appendix C.

    As documented, tanh squashes the log of the deviation into [-5, 2].
    """
    action, log_prob = [], 0.0
    for m, raw, deviations in zip(mean, spread, noise, strict=True):
        log_deviation = -1.5 + 3.5 * math.tanh(raw)
        u = m + math.exp(log_deviation) * deviations
        log_prob += -0.5 * deviations**2 - log_deviation - 0.5 * math.log(2.0 * math.pi)
        # Minus log(1 - tanh(u)^2), without a difference that loses digits.
        log_prob += 2.0 * math.log(math.cosh(u))
        action.append(math.tanh(u))
    return action, log_prob


def sac(
    sampled: Sampled,
    actor: Callable[[int, int], tuple[Sequence[float], Sequence[float]]],
    critics: Sequence[Critic],
    target_critics: Sequence[Critic],
    noise_after: Sequence[float],
    noise: Sequence[float],
    temperature: float,
    target_entropy: float,
) -> Result:
    """Haarnoja et al. 2018 (1812.05905), equations 3, 5, 9 and 18; `actor` gives means and raw spreads."""

    def soft_value(row: int, b: int) -> float:
        action, log_prob = squashed(*actor(row, b), noise_after)
        return min(critic(row, b, action) for critic in target_critics) - temperature * log_prob

    def actor_term(t: int, b: int) -> float:
        action, log_prob = squashed(*actor(t, b), noise)
        return temperature * log_prob - min(critic(t, b, action) for critic in critics)

    def temperature_term(t: int, b: int) -> float:
        return -temperature * (squashed(*actor(t, b), noise)[1] + target_entropy)

    found = critic_part(sampled, critics, soft_value)
    parts = (found["critic_loss"], sampled.mean(actor_term), sampled.mean(temperature_term))
    return found | {"actor_loss": parts[1], "loss": sum(parts)}


def td3(
    sampled: Sampled,
    actor: Callable[[int, int], Action],
    target_actor: Callable[[int, int], Action],
    critics: Sequence[Critic],
    target_critics: Sequence[Critic],
    noise: Sequence[float],
    target_noise: float,
    noise_clip: float,
) -> Result:
    """Fujimoto et al. 2018, algorithm 1, in a step of the policy too; `noise` is of unit deviation."""

    def smoothed_value(row: int, b: int) -> float:
        action = []
        for unit, deviations in zip(target_actor(row, b), noise, strict=True):
            offset = max(-noise_clip, min(noise_clip, deviations * target_noise))
            action.append(max(-1.0, min(1.0, unit + offset)))
        return min(critic(row, b, action) for critic in target_critics)

    found = critic_part(sampled, critics, smoothed_value)
    actor_loss = sampled.mean(lambda t, b: -critics[0](t, b, actor(t, b)))
    return found | {"actor_loss": actor_loss, "loss": found["critic_loss"] + actor_loss}
