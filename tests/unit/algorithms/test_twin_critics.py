"""What SAC and TD3 share: weights of steps, and critics held still."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from shoal.algorithms.counted import counted
from shoal.algorithms.twin_critics import critic_loss, held_still
from tests.unit.algorithms.continuous import transitions


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def test_weights_scale_losses_and_leave_metrics_alone() -> None:
    """Halving all weights halves the loss; a mean error stays what it is, and so do priorities."""
    batch = replace(transitions(4), weight_B=torch.tensor([1.0, 1.0, 0.5, 0.0]))
    q = torch.zeros(2, 1, 4)
    target = torch.tensor([[1.0, -2.0, 4.0, 9.0]])
    found = critic_loss(q, target, batch, counted(batch))
    # Both critics: (1 + 4 + 0.5 x 16) over the three items that count.
    assert found.loss.item() == pytest.approx(13.0 / 3)
    assert found.metrics["td_error"].item() == pytest.approx((1.0 + 2.0 + 0.5 * 4.0) / 2.5)
    assert found.priority_B.tolist() == [1.0, 2.0, 4.0, 9.0]
    halved = replace(batch, weight_B=batch.weight_B / 2)
    other = critic_loss(q, target, halved, counted(halved))
    assert other.loss.item() == pytest.approx(13.0 / 6)
    assert other.metrics["td_error"].item() == pytest.approx(found.metrics["td_error"].item())
    assert other.priority_B.tolist() == found.priority_B.tolist()


def test_what_is_held_still_passes_gradients_on() -> None:
    module = nn.Linear(2, 1)
    inputs = torch.ones(1, 2, requires_grad=True)
    with held_still(module):
        out = module(inputs)
    torch.autograd.backward(out.sum() + module(torch.ones(1, 2)).sum() * 0.0)
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, module.weight.detach())
    assert module.weight.grad is not None
    assert float(module.weight.grad.abs().sum()) == 0.0


def test_a_failure_leaves_nothing_held_still() -> None:
    module = nn.Linear(2, 1)
    with pytest.raises(RuntimeError), held_still(module):
        module(torch.ones(1, 3))
    assert module.weight.requires_grad


def test_what_was_frozen_stays_frozen() -> None:
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    with held_still(module):
        pass
    assert (module.weight.requires_grad, module.bias.requires_grad) == (True, False)
