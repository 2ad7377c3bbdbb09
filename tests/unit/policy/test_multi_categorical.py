"""MultiDiscrete against one torch.distributions.Categorical for each element."""

from __future__ import annotations

import pytest
import torch

from shoal.policy.distributions import Categorical
from shoal.policy.multi_categorical import ElementLayout, MultiCategorical


def ours(params: torch.Tensor, nvec: tuple[int, ...], mask: torch.Tensor | None = None) -> MultiCategorical:
    layout = ElementLayout(nvec)
    return MultiCategorical(Categorical(layout.padded(params), layout.allowed(mask)))


@pytest.mark.parametrize("nvec", [(3, 2, 4), (3, 3), (5,), (1, 1), (1, 7)])
@pytest.mark.parametrize("leading", [(6,), (2, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_torch(nvec: tuple[int, ...], leading: tuple[int, ...], masked: bool) -> None:
    torch.manual_seed(2)
    params = torch.randn(*leading, sum(nvec)) * 2
    mask = torch.randint(0, 2, params.shape, dtype=torch.int8) if masked else None
    distribution = ours(params, nvec, mask)

    references = []
    for logits, part in zip(
        params.split(nvec, -1),
        (mask if mask is not None else torch.ones_like(params)).split(nvec, -1),
        strict=True,
    ):
        allowed = (part != 0) | (part == 0).all(-1, keepdim=True)
        references.append(torch.distributions.Categorical(logits=logits.masked_fill(~allowed, -1e9)))
    action = torch.stack([reference.sample() for reference in references], -1)
    log_prob = sum(reference.log_prob(action[..., d]) for d, reference in enumerate(references))
    torch.testing.assert_close(distribution.log_prob(action), log_prob)
    torch.testing.assert_close(distribution.entropy(), sum(reference.entropy() for reference in references))
    mode = torch.stack([reference.probs.argmax(-1) for reference in references], -1)
    assert torch.equal(distribution.mode(), mode)
    drawn = distribution.sample()
    assert drawn.shape == action.shape
    assert bool((drawn < torch.tensor(nvec)).all())
    assert bool(distribution.log_prob(drawn).gt(-1e8).all()), "a forbidden action was drawn"


def test_gradients_of_masked_entropy_are_finite_and_forbidden_ones_get_none() -> None:
    params = torch.randn(4, 5, requires_grad=True)
    mask = torch.tensor([1, 0, 1, 0, 1]).expand(4, 5)
    distribution = ours(params, (3, 2), mask)
    (distribution.entropy() + distribution.log_prob(torch.tensor([[0, 1]]).expand(4, 2))).sum().backward()
    assert params.grad is not None
    assert bool(params.grad.isfinite().all())
    assert params.grad[:, [1, 3]].abs().max() == 0
    assert params.grad[:, [0, 2]].abs().min() > 0
