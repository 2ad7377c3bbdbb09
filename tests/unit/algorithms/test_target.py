"""Target networks hold still, are copied into, and follow; gradients never reach them."""

from __future__ import annotations

import torch
from torch import nn

from shoal.algorithms.target import Target


def test_a_target_holds_still_until_copied() -> None:
    source = nn.Linear(2, 3)
    before = source.weight.detach().clone()
    target = Target(source)
    with torch.no_grad():
        source.weight.add_(1.0)
    assert torch.equal(target.module.weight, before)
    target.copy_from(source)
    assert torch.equal(target.module.weight, source.weight)
    assert torch.equal(target.module.bias, source.bias)


def test_a_target_follows_at_its_rate_and_has_the_same_statistics() -> None:
    source = nn.BatchNorm1d(2)
    target = Target(source)
    with torch.no_grad():
        source.weight.fill_(3.0)
        source.running_mean.fill_(8.0)  # type: ignore[union-attr]
    target.follow(source, 0.25)
    assert target.module.weight.tolist() == [1.5, 1.5]
    assert target.module.running_mean.tolist() == [8.0, 8.0]  # type: ignore[union-attr]


def test_no_gradient_reaches_a_target() -> None:
    target = Target(nn.Linear(2, 1))
    assert not any(parameter.requires_grad for parameter in target.parameters())
    assert "module.weight" in target.state_dict()
