"""V-trace, GAE and n-step returns as the sums of the papers, one environment and one step at a time.

Plain floats and loops on purpose: nothing here shares code or structure with `shoal.algorithms`.

Ends of episodes follow docs/algorithms/README.md: gamma is 0 after a termination, a truncated episode
bootstraps from the row after it, and the step that resets an environment (the next row is a first one) is no
transition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stream:
    """T steps of one environment; `first` and all tables of values have T + 1 rows."""

    reward: Sequence[float]
    terminated: Sequence[bool]
    truncated: Sequence[bool]
    first: Sequence[bool]
    weight: float = 1.0

    @property
    def transitions(self) -> list[int]:
        return [t for t in range(len(self.reward)) if not self.first[t + 1]]

    def last_step(self, start: int, n: int | None = None) -> int:
        """The last step of a sum from step `start`: the n-th, or the last of the episode or unroll."""
        step = start
        while step + 1 < len(self.reward) and (n is None or step + 1 < start + n):
            if self.terminated[step] or self.truncated[step]:
                break
            step += 1
        return step

    def discount(self, step: int, gamma: float) -> float:
        return 0.0 if self.terminated[step] else gamma


@dataclass(frozen=True)
class Trace:
    """V-trace of one environment, per step; `rho` is clipped."""

    vs: list[float]
    advantage: list[float]
    rho: list[float]


def vtrace(
    stream: Stream,
    value: Sequence[float],
    log_rho: Sequence[float],
    gamma: float,
    rho_clip: float,
    c_clip: float,
    trace_lambda: float,
) -> Trace:
    """Espeholt et al. 2018, equation 1 with remark 2's lambda, and the advantage of section 4.2."""
    steps = range(len(stream.reward))
    counts = [0.0 if stream.first[t + 1] else 1.0 for t in steps]
    rho = [counts[t] * min(rho_clip, math.exp(log_rho[t])) for t in steps]
    c = [counts[t] * trace_lambda * min(c_clip, math.exp(log_rho[t])) for t in steps]

    def delta(t: int) -> float:
        return rho[t] * (stream.reward[t] + stream.discount(t, gamma) * value[t + 1] - value[t])

    vs = []
    for s in steps:
        total = value[s]
        for t in range(s, stream.last_step(s) + 1):
            product = 1.0
            for i in range(s, t):
                product *= gamma * c[i]
            total += product * delta(t)
        vs.append(total)
    after = [*vs[1:], value[-1]]
    # After a truncation `after` is V of the true last observation: the step that resets adds nothing to it.
    advantage = [rho[t] * (stream.reward[t] + stream.discount(t, gamma) * after[t] - value[t]) for t in steps]
    return Trace(vs, advantage, rho)


def gae(stream: Stream, value: Sequence[float], gamma: float, gae_lambda: float) -> list[float]:
    """Schulman et al. 2016, equation 16, cut at the end of the episode; 0 where there is no transition."""
    advantages = [0.0] * len(stream.reward)
    for start in stream.transitions:
        for t in range(start, stream.last_step(start) + 1):
            delta = stream.reward[t] + stream.discount(t, gamma) * value[t + 1] - value[t]
            advantages[start] += (gamma * gae_lambda) ** (t - start) * delta
    return advantages


def n_step(stream: Stream, t: int, n: int, gamma: float) -> tuple[float, float, int]:
    """The sum of up to n rewards, what the value after them is worth, and the row of that value."""
    last = stream.last_step(t, n)
    total = sum(gamma ** (i - t) * stream.reward[i] for i in range(t, last + 1))
    worth = 0.0 if stream.terminated[last] else gamma ** (last + 1 - t)
    return total, worth, last + 1
