"""The tanh-Gaussian against torch.distributions, whose numbers are good while tanh is not saturated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions
from torch.distributions import transforms

from shoal.errors import UserError
from shoal.policy.bounds import Bounds
from shoal.policy.squashed import TanhGaussian
from shoal.records import BoxAction, DiscreteAction
from tests.unit.policy.stepping import BOX, UNBOUNDED, spec_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(4)


def bounds_of(action: BoxAction) -> Bounds:
    return Bounds(spec_of(action), "soft_actor_critic")


def reference(params: torch.Tensor, bounds: Bounds) -> distributions.TransformedDistribution:
    mean, log_std = params.double().chunk(2, -1)
    return distributions.TransformedDistribution(
        distributions.Independent(distributions.Normal(mean, log_std.exp()), 1),
        [
            transforms.TanhTransform(),
            transforms.AffineTransform(bounds.center.double(), bounds.half_width.double(), event_dim=1),
        ],
    )


@pytest.mark.parametrize("leading", [(50,), (5, 10)])
def test_agrees_with_torch(leading: tuple[int, ...]) -> None:
    bounds = bounds_of(BOX)
    params = torch.randn(*leading, 8) * torch.tensor([0.7] * 4 + [0.3] * 4)
    ours = TanhGaussian(params, bounds)
    action, log_prob = ours.rsample()
    assert action.shape == (*leading, 2, 2)

    expected = reference(params, bounds).log_prob(action.double().flatten(-2)).float()
    torch.testing.assert_close(log_prob, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.log_prob(action), expected, atol=1e-3, rtol=1e-3)


def test_the_density_has_mass_one() -> None:
    """Summed over a fine grid of the bounds, one dimension."""
    bounds = bounds_of(BoxAction((1,), (-1.0,), (5.0,)))
    grid = torch.linspace(-1.0, 5.0, 200_001)[1:-1].unsqueeze(-1)
    ours = TanhGaussian(torch.tensor([0.4, -0.2]).expand(len(grid), 2), bounds)
    mass = float(ours.log_prob(grid).double().exp().sum() * (6.0 / 200_000))
    assert mass == pytest.approx(1.0, abs=1e-3)


def test_far_out_the_log_probability_stays_finite_and_right() -> None:
    """log(1 - tanh(u)^2) is 2 log 2 - 2 |u| there, while 1 - tanh(u)^2 itself is 0 in float32."""
    bounds = bounds_of(BoxAction((1,), (-1.0,), (1.0,)))
    latent = torch.tensor([[30.0], [-30.0]])
    ours = TanhGaussian(torch.tensor([[30.0, 0.0], [-30.0, 0.0]]), bounds)
    normal = -0.5 * math.log(2.0 * math.pi)
    expected = normal - (2.0 * math.log(2.0) - 60.0)
    torch.testing.assert_close(ours.latent_log_prob(latent), torch.full((2,), expected))
    assert bool(ours.log_prob(ours.action_of(latent)).isfinite().all())


def test_samples_have_the_references_quantiles() -> None:
    bounds = bounds_of(BoxAction((1,), (-1.0,), (5.0,)))
    params = torch.tensor([0.4, -0.2]).expand(40_000, 2)
    drawn = TanhGaussian(params, bounds).sample().flatten().sort().values
    expected = reference(params, bounds).sample().flatten().sort().values.float()
    torch.testing.assert_close(drawn[::4000], expected[::4000], atol=0.1, rtol=0)


def test_actions_are_within_the_bounds_to_the_last_digit() -> None:
    action = BoxAction((3,), (-0.1, 0.3, -1e9), (0.7, 0.30001, 0.1))
    bounds = bounds_of(action)
    ours = TanhGaussian(torch.cat([torch.randn(1000, 3) * 50, torch.zeros(1000, 3)], -1), bounds)
    drawn = ours.sample()
    assert bool((drawn >= torch.tensor(action.low)).all())
    assert bool((drawn <= torch.tensor(action.high)).all())


def test_gradients_go_through_samples_and_log_probabilities() -> None:
    params = torch.zeros(6, 8, requires_grad=True)
    action, log_prob = TanhGaussian(params, bounds_of(BOX)).rsample()
    (action.square().sum() + log_prob.sum()).backward()
    assert params.grad is not None
    assert bool((params.grad.abs() > 0).all())


def test_the_mode_is_the_squashed_mean() -> None:
    bounds = bounds_of(BoxAction((1,), (-1.0,), (5.0,)))
    mode = TanhGaussian(torch.tensor([[0.5, 1.0]]), bounds).mode()
    assert mode.item() == pytest.approx(2.0 + 3.0 * math.tanh(0.5))


def test_there_and_back() -> None:
    bounds = bounds_of(BOX)
    unit = torch.rand(7, 3, 4) * 2 - 1
    torch.testing.assert_close(bounds.to_unit(bounds.from_unit(unit)), unit, atol=1e-5, rtol=0)
    assert bounds.log_volume == pytest.approx(math.log(2.0 * 4.0 * 5.0 * 2.0))


@pytest.mark.parametrize(
    "action",
    [
        UNBOUNDED,
        DiscreteAction(3),
        BoxAction((1,), (1.0,), (1.0,)),
        BoxAction((1,), (2.0,), (1.0,)),
        BoxAction((1,), (math.nan,), (1.0,)),
        BoxAction((1,), (-1e300,), (1e300,)),
        BoxAction((1,), (0.0,), (1e-40,)),
    ],
)
def test_what_has_no_bounds_is_refused(action: BoxAction | DiscreteAction) -> None:
    with pytest.raises(UserError, match="'soft_actor_critic', which needs Box actions with finite bounds"):
        Bounds(spec_of(action), "soft_actor_critic")
