"""Distributions over actions: what a policy's parameters mean.

Plain tensor arithmetic instead of `torch.distributions`, whose argument checks cost more than a small
network's forward pass on a CPU. Used by the policies' `act` in inference and by the losses in the learner.
Stateless; any thread. Leading dimensions are free: [B], [T, B], ...
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from shoal.policy.bounds import ActionUnits
from shoal.policy.masks import hide

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
# Below the smallest number above 0 that `torch.rand` draws.
_TINY = 2.0**-30


class Distribution(Protocol):
    """One distribution over actions for each leading index."""

    def log_prob(self, action: Tensor) -> Tensor:
        """[...]: log probability (density) of each action."""
        ...

    def entropy(self) -> Tensor:
        """[...]: in nats."""
        ...

    def sample(self) -> Tensor:
        """[..., *action shape]: drawn with torch's global generator of the device."""
        ...

    def mode(self) -> Tensor:
        """[..., *action shape]: the most likely action."""
        ...


class Categorical:
    """One of A actions. Parameters: A logits; `allowed` [..., A] leaves no chance to the others."""

    def __init__(self, logits: Tensor, allowed: Tensor | None = None) -> None:
        self.log_probs = torch.log_softmax(hide(logits, allowed), dim=-1)
        self.allowed = allowed

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def sample(self) -> Tensor:
        # The first of A exponential clocks with rates p to ring: argmin E/p with E = -log(uniform).
        # A tenth of multinomial's cost, half of exponential_'s, and any leading shape.
        p = self.log_probs.exp()
        uniform = torch.rand_like(p)
        if self.allowed is not None:
            # A uniform number of 0 would put an allowed action level with the forbidden ones.
            uniform.clamp_(min=_TINY)
        return uniform.log_().div_(p).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def explored(self, epsilon: Tensor) -> Categorical:
        """(1 - epsilon) of this and epsilon of the uniform one over what is allowed; epsilon is [...]."""
        epsilon = epsilon.unsqueeze(-1)
        if self.allowed is None:
            log_num = torch.full_like(epsilon, math.log(self.log_probs.shape[-1]))
        else:
            log_num = self.allowed.sum(-1, keepdim=True).log()
        mixed = torch.logaddexp(self.log_probs + torch.log1p(-epsilon), epsilon.log() - log_num)
        return Categorical(mixed, self.allowed)


class DiagonalGaussian:
    """Independent normals, one for each element of a Box action. Parameters: means, then log deviations.

    Both are in `units`, and so are densities: what the entropy is does not depend on the numbers that an
    environment takes. Unbounded: the actor clips what it gives to the environment, the log probability stays
    that of the sample as drawn.
    """

    def __init__(self, params: Tensor, units: ActionUnits) -> None:
        self.mean, self.log_std = params.chunk(2, dim=-1)
        self.units = units

    def log_prob(self, action: Tensor) -> Tensor:
        return gaussian_log_prob(self.units.to_unit(action), self.mean, self.log_std)

    def entropy(self) -> Tensor:
        return (self.log_std + (0.5 + _LOG_SQRT_2PI)).sum(-1)

    def sample(self) -> Tensor:
        drawn = torch.addcmul(self.mean, self.log_std.exp(), torch.randn_like(self.mean))
        return self.units.from_unit(drawn)

    def mode(self) -> Tensor:
        return self.units.from_unit(self.mean)


def gaussian_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """[...]: log density of independent normals at `x`, summed over the last dimension."""
    z = (x - mean) * (-log_std).exp()
    return (-0.5 * z * z - log_std - _LOG_SQRT_2PI).sum(-1)
