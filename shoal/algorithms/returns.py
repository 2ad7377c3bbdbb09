"""How large discounted returns are, learnt from unrolls: what rewards are divided by. Training thread.

Nobody knows the return of an unroll: episodes go on behind it. Let A be the discounted rewards of its steps,
up to the end of the episode, and d what the return from there on is worth: gamma^k after k steps, 0 if the
episode terminated. Then the return is G = A + d G'. Taking G' for a return like any other, independent of the
unroll in front of it, the moments of G follow from those of A and d:

    E[G]   = E[A] / (1 - E[d])
    E[G^2] = (E[A^2] + 2 E[A d] E[G]) / (1 - E[d^2])

This is exact if unrolls last as long as episodes or as 1 / (1 - gamma), and for rewards that are constant or
drawn independently. Returns of states that stay good or bad for longer than an unroll come out smaller than
they are, which is a constant factor; no critic that is still wrong takes part. Rewards are divided by
sqrt(E[G^2]), not by the deviation: that of CartPole's returns, all rewards being 1, is near 0 within unrolls.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.batch import Batch

# Rewards come out within +- this: the first one after millions of zeros must not be a thousand.
MAX_NORMALISED = 10.0

# A batch counts for at least this much: returns grow while a policy learns.
MIN_RATE = 1e-3

# Horizons are cut at a thousand items: without discount and without ends there would be none.
_MIN_REST = 1e-3
_EPSILON = 1e-16


class ReturnScale(nn.Module):
    """Divides rewards by the root mean square of discounted returns; before the first batch, by 1."""

    # Transitions at the start of unrolls so far, and means over them of A, A^2, d, d^2, A d.
    count: Tensor
    means: Tensor

    def __init__(self, discount: float) -> None:
        super().__init__()
        self._discount = discount
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("means", torch.zeros(5, dtype=torch.float64))

    def forward(self, reward: Tensor) -> Tensor:
        scale = torch.where(self.count > 0, (self.mean_square() + _EPSILON).rsqrt(), 1.0)
        return (reward * scale.to(reward.dtype)).clamp(-MAX_NORMALISED, MAX_NORMALISED)

    def mean_square(self) -> Tensor:
        """E[G^2]."""
        sum_1, sum_2, rest_1, rest_2, joint = self.means.unbind()
        mean = sum_1 / (1.0 - rest_1).clamp(min=_MIN_REST)
        return ((sum_2 + 2.0 * joint * mean) / (1.0 - rest_2).clamp(min=_MIN_REST)).clamp(min=0.0)

    @torch.no_grad()
    def moments(self, batch: Batch, reward_SB: Tensor) -> Tensor:
        """Of a batch, for `observe`: sums that are added up over learners. `reward_SB` is not yet divided."""
        sum_B, rest_B = self._unrolls(batch, reward_SB.to(torch.float64))
        terms = (torch.ones_like(sum_B), sum_B, sum_B.square(), rest_B, rest_B.square(), sum_B * rest_B)
        # Nothing can be said of unrolls that start with an autoreset step.
        return torch.stack(terms) @ (batch.valid_TB[0] * batch.counts_B).to(torch.float64)

    @torch.no_grad()
    def observe(self, moments: Tensor) -> None:
        num, sums = moments[0], moments[1:]
        self.count.add_(num)
        rate = (num / self.count.clamp(min=1.0)).clamp(min=MIN_RATE)
        self.means.lerp_(sums / num.clamp(min=1.0), torch.where(num > 0, rate, 0.0))

    def _unrolls(self, batch: Batch, reward_SB: Tensor) -> tuple[Tensor, Tensor]:
        """A and d of each unroll, from its row 0 on."""
        if batch.discount_SB is not None:
            return reward_SB[0], batch.discount_SB[0].to(torch.float64)
        terminated_TB, restarted_TB = batch.terminated_SB[:-1], batch.first_SB[1:]
        ended_TB = terminated_TB | batch.truncated_SB[:-1] | restarted_TB
        # Steps of the episode of row 0: no end before them, and no autoreset steps.
        counted_TB = (ended_TB.cumsum(0) - ended_TB.to(torch.int64) == 0) & ~restarted_TB
        power_T = self._discount ** torch.arange(len(ended_TB), device=ended_TB.device, dtype=torch.float64)
        sum_B = (counted_TB * reward_SB[:-1] * power_T[:, None]).sum(0)
        rest_B = self._discount ** counted_TB.sum(0).to(torch.float64)
        return sum_B, rest_B * (counted_TB & terminated_TB).any(0).logical_not()
