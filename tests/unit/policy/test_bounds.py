"""Units of Box actions: there and back, elements without bounds, and what a fresh policy does first."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.policy.bounds import ActionUnits
from shoal.policy.network import ActorCritic, Choice, build_policy
from shoal.records import ACTION, BoxAction
from tests.unit.policy.stepping import BOX, CPU, UNBOUNDED, observe, spec_of

MIXED = BoxAction((4,), (10.0, -math.inf, -2.0, 5.0), (30.0, 1.0, math.inf, 5.0))
SCALAR = BoxAction((), (-3.0,), (9.0,))


@pytest.mark.parametrize("action", [BOX, UNBOUNDED, MIXED, SCALAR])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("leading", [(1,), (5,), (3, 2)])
def test_there_and_back(action: BoxAction, scaled: bool, leading: tuple[int, ...]) -> None:
    units = ActionUnits(action, scaled)
    flat = torch.randn(*leading, math.prod(action.shape))
    actions = units.from_unit(flat)
    assert actions.shape == (*leading, *action.shape)
    torch.testing.assert_close(units.to_unit(actions), flat, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("action", [BOX, MIXED, SCALAR])
def test_bounds_are_one_and_minus_one(action: BoxAction) -> None:
    units = ActionUnits(action)
    for index, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if not math.isfinite(high - low) or low == high:
            continue
        for unit, expected in (
            (-1.0, low),
            (0.0, (low + high) / 2),
            (1.0, high),
            (2.0, high + (high - low) / 2),
        ):
            flat = torch.zeros(1, len(action.low))
            flat[0, index] = unit
            assert units.from_unit(flat).flatten()[index].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("action", "scaled", "index"),
    [(MIXED, True, 1), (MIXED, True, 2), (MIXED, True, 3), (MIXED, False, 0), (BOX, False, 2)],
)
def test_elements_without_width_stay_as_they_are(action: BoxAction, scaled: bool, index: int) -> None:
    """One bound, none, or both the same; or all of them, if nothing is to be scaled."""
    flat = torch.linspace(-7.0, 7.0, len(action.low))
    assert ActionUnits(action, scaled).from_unit(flat).flatten()[index] == flat[index]


def test_the_volume_is_that_of_the_half_widths() -> None:
    assert ActionUnits(MIXED).log_half_volume == pytest.approx(math.log(10.0))
    assert ActionUnits(MIXED, scaled=False).log_half_volume == 0.0


@pytest.mark.parametrize("scaled", [True, False])
def test_first_actions_lie_in_the_middle_of_their_bounds(scaled: bool) -> None:
    torch.manual_seed(3)
    spec = spec_of(BoxAction((1,), (10.0,), (30.0,)))
    policy = build_policy(PolicySection(initial_log_std=-0.5, scale_actions=scaled), spec)
    assert isinstance(policy, ActorCritic)
    first = torch.ones(4000, dtype=torch.bool)
    acted = policy.act(observe(spec, 4000), first, policy.initial_state(4000, CPU), Choice())
    drawn = acted.outputs[ACTION]
    inside = ((drawn > 10.0) & (drawn < 30.0)).float().mean().item()
    print(f"mean {drawn.mean().item():.2f}, {inside:.0%} within [10, 30]")
    if scaled:
        assert drawn.mean().item() == pytest.approx(20.0, abs=1.0)
        assert drawn.std().item() == pytest.approx(10.0 * math.exp(-0.5), abs=0.5)
        assert inside > 0.85
    else:
        assert inside == 0.0, "as actions of the order of 1 do"
