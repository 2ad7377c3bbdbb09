"""The losses and priorities of Ape-X DQN and R2D2, summed step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.unit.algorithms.parity.slow_targets import Stream, n_step

Table = Sequence[Sequence[float]]


@dataclass(frozen=True)
class QRows:
    """One environment with the Q values [T + 1][A] of the online and of the target network."""

    stream: Stream
    action: Sequence[int]
    online: Table
    target: Table

    def bootstrap(self, row: int) -> float:
        """Double Q-learning: the online network chooses, the target network judges."""
        best = max(range(len(self.online[row])), key=lambda action: self.online[row][action])
        return self.target[row][best]


def huber(error: float, delta: float) -> float:
    """0.5 error^2 near 0, and a line from `delta` on."""
    size = abs(error)
    return 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)


def h(x: float, epsilon: float) -> float:
    """Value rescaling of Kapturowski et al. 2019, section 2.3."""
    return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + epsilon * x


def h_inverse(y: float, epsilon: float) -> float:
    """By bisection, which needs no formula: h rises everywhere, and so steeply that |x| <= |y| / epsilon."""
    low, high = -abs(y) / epsilon, abs(y) / epsilon
    for _ in range(200):
        middle = (low + high) / 2.0
        if h(middle, epsilon) < y:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def apex(rows: Sequence[QRows], n: int, gamma: float, delta: float) -> dict[str, object]:
    """Horgan et al. 2018, section 3.1, and the documented Huber loss; the mean error is the priority."""

    def target(total: float, worth: float, value: float) -> float:
        return total + worth * value

    return _summed(rows, n, gamma, target, lambda error: huber(error, delta), max_share=0.0)


def r2d2(rows: Sequence[QRows], n: int, gamma: float, epsilon: float, max_share: float) -> dict[str, object]:
    """Kapturowski et al. 2019, section 2.3: targets between h and its inverse, priorities mixed by eta."""

    def target(total: float, worth: float, value: float) -> float:
        return h(total + worth * h_inverse(value, epsilon), epsilon)

    return _summed(rows, n, gamma, target, lambda error: 0.5 * error**2, max_share)


def _summed(
    rows: Sequence[QRows],
    n: int,
    gamma: float,
    target_of: Callable[[float, float, float], float],
    loss_of: Callable[[float], float],
    max_share: float,
) -> dict[str, object]:
    """As documented, weights scale each step's loss, and the mean is over the number of steps that count.

    What is too old (weight 0) does not count, and the curves leave weights out.
    """
    loss, num = 0.0, 0
    sums = {"td_error": 0.0, "q_mean": 0.0, "target_mean": 0.0}
    priorities = []
    for env in rows:
        errors = []
        for t in env.stream.transitions:
            total, worth, row = n_step(env.stream, t, n, gamma)
            target, taken = target_of(total, worth, env.bootstrap(row)), env.online[t][env.action[t]]
            errors.append(abs(target - taken))
            if env.stream.weight > 0:
                loss += env.stream.weight * loss_of(target - taken)
                num += 1
                for name, value in zip(sums, (errors[-1], taken, target), strict=True):
                    sums[name] += value
        priorities.append(max_share * max(errors) + (1.0 - max_share) * sum(errors) / len(errors))
    means = {name: value / num for name, value in sums.items()}
    return {"loss": loss / num, "priority": priorities, **means}
