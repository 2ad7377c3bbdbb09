"""Against torch.distributions, the slow and obvious version."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.policy.bounds import ActionUnits
from shoal.policy.distributions import Categorical, DiagonalGaussian
from shoal.policy.masks import allowed_actions
from shoal.records import BoxAction


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize("leading", [(5,), (3, 4), ()])
def test_categorical_agrees_with_torch(leading: tuple[int, ...]) -> None:
    logits = torch.randn(*leading, 6) * 3
    reference = torch.distributions.Categorical(logits=logits)
    ours = Categorical(logits)
    action = reference.sample()

    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_categorical_by_hand() -> None:
    ours = Categorical(torch.tensor([[0.0, math.log(3.0)]]))  # probabilities 1/4 and 3/4

    assert ours.log_prob(torch.tensor([1])).item() == pytest.approx(math.log(0.75), rel=1e-6)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert ours.entropy().item() == pytest.approx(entropy, rel=1e-6)


def test_categorical_samples_have_the_right_frequencies() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    num = 40_000
    drawn = Categorical(probabilities.log().expand(num, 5)).sample()
    counts = torch.bincount(drawn, minlength=5).double()

    expected = probabilities[:4].double() * num
    chi_square = float(((counts[:4] - expected) ** 2 / expected).sum())
    print(f"chi-square of {num} samples, 3 degrees of freedom: {chi_square:.2f}")
    assert chi_square < 16.27  # p = 0.001
    assert counts[4] == 0
    assert drawn.dtype == torch.int64


def test_categorical_samples_differ_between_rows_and_calls() -> None:
    uniform = Categorical(torch.zeros(64, 8))

    first, second = uniform.sample(), uniform.sample()
    assert len(first.unique()) > 1
    assert not torch.equal(first, second)


def units(shape: tuple[int, ...], low: float = -1.0, high: float = 1.0) -> ActionUnits:
    size = math.prod(shape)
    return ActionUnits(BoxAction(shape, (low,) * size, (high,) * size))


@pytest.mark.parametrize("leading", [(5,), (3, 4)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (10.0, 30.0)])
def test_gaussian_agrees_with_torch(
    leading: tuple[int, ...], shape: tuple[int, ...], low: float, high: float
) -> None:
    """Of actions in half widths of their bounds, whatever these are."""
    size, center, half_width = math.prod(shape), (low + high) / 2, (high - low) / 2
    mean, log_std = torch.randn(*leading, size), torch.randn(*leading, size) * 0.5
    reference = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    ours = DiagonalGaussian(torch.cat([mean, log_std], -1), units(shape, low, high))
    flat = reference.sample()
    action = (center + half_width * flat).reshape(*leading, *shape)

    torch.testing.assert_close(ours.log_prob(action), reference.log_prob(flat), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    torch.testing.assert_close(ours.mode(), (center + half_width * mean).reshape(*leading, *shape))
    assert ours.sample().shape == (*leading, *shape)


def test_gaussian_samples_have_the_right_moments() -> None:
    params = torch.tensor([2.0, -1.0, math.log(0.5), math.log(3.0)]).expand(40_000, 4)
    drawn = DiagonalGaussian(params, units((2,))).sample().double()

    torch.testing.assert_close(drawn.mean(0), torch.tensor([2.0, -1.0]).double(), atol=0.06, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.5, 3.0]).double(), atol=0.05, rtol=0)


def test_gradients_reach_the_parameters() -> None:
    logits = torch.zeros(4, 3, requires_grad=True)
    ours = Categorical(logits)
    (ours.log_prob(torch.tensor([0, 1, 2, 0])).sum() + ours.entropy().sum()).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().sum()) > 0


def test_masked_categorical_agrees_with_torch_over_what_is_allowed() -> None:
    logits = torch.randn(6, 5) * 3
    allowed = torch.tensor([True, False, True, True, False])
    ours = Categorical(logits, allowed.expand(6, 5))
    reference = torch.distributions.Categorical(logits=logits[:, allowed])

    torch.testing.assert_close(ours.log_probs[:, allowed], reference.logits)
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    assert bool((ours.log_probs.exp()[:, ~allowed] == 0).all())
    assert bool(ours.log_probs.isfinite().all())


def test_rows_without_an_allowed_action_allow_all() -> None:
    mask = torch.tensor([[0, 1, 0], [0, 0, 0]], dtype=torch.int8)
    expected = torch.tensor([[False, True, False], [True, True, True]])
    assert torch.equal(allowed_actions(mask), expected)


def test_not_even_the_rarest_random_number_draws_a_forbidden_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    only_last = Categorical(torch.zeros(4, 3), torch.tensor([False, False, True]).expand(4, 3))
    assert only_last.sample().tolist() == [2, 2, 2, 2]
