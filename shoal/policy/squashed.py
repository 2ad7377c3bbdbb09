"""The tanh-Gaussian of SAC (Haarnoja et al. 2018, appendix C): normals squashed into the bounds of a Box.

With u ~ N(mean, std) the action is center + half width * tanh(u), and
log pi(a) = log N(u) - sum log(half width) - sum log(1 - tanh(u)^2). The last term is computed as
2 (log 2 - u - softplus(-2u)), which stays finite where tanh is 1 to the last digit. Leading dimensions are
free. Stateless; any thread.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from shoal.policy.bounds import Bounds
from shoal.policy.distributions import gaussian_log_prob

# The largest float32 below 1 whose atanh is finite by a margin.
_MAX_UNIT = 1.0 - 2.0**-23


class TanhGaussian:
    """Parameters: means, then log deviations, of u. A `latent` is a value of u, [..., D]."""

    def __init__(self, params: Tensor, bounds: Bounds) -> None:
        self.mean, self.log_std = params.chunk(2, dim=-1)
        self.bounds = bounds

    def latent_sample(self) -> Tensor:
        """Gradients go through it (the reparameterisation)."""
        return torch.addcmul(self.mean, self.log_std.exp(), torch.randn_like(self.mean))

    def action_of(self, latent: Tensor) -> Tensor:
        return self.bounds.from_unit(latent.tanh())

    def latent_log_prob(self, latent: Tensor) -> Tensor:
        """[...]: log density of the action of this latent; exact however far out."""
        correction = 2.0 * (math.log(2.0) - latent - functional.softplus(-2.0 * latent))
        log_normal = gaussian_log_prob(latent, self.mean, self.log_std)
        return log_normal - correction.sum(-1) - self.bounds.log_half_volume

    def rsample(self) -> tuple[Tensor, Tensor]:
        """Actions and their log probabilities, both with gradients."""
        latent = self.latent_sample()
        return self.action_of(latent), self.latent_log_prob(latent)

    def sample(self) -> Tensor:
        return self.action_of(self.latent_sample()).detach()

    def mode(self) -> Tensor:
        """The action of the mean, as is usual; the density's own peak may lie at the bounds."""
        return self.action_of(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """[...]: of an action alone. One at the very bounds counts as the nearest inside."""
        return self.latent_log_prob(latent_of(self.bounds.to_unit(action)))


def latent_of(unit: Tensor) -> Tensor:
    """atanh, finite everywhere."""
    return unit.clamp(-_MAX_UNIT, _MAX_UNIT).atanh()
