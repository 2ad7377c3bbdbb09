"""Target networks: copies that hold still, or follow slowly, while the networks they were copied from learn.

A part of the algorithm that owns it, so that checkpoints hold it too. Training thread.
"""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from shoal.policy.network import Policy

ModuleT = TypeVar("ModuleT", bound=nn.Module)
PolicyT = TypeVar("PolicyT", bound=Policy)


class Target(nn.Module, Generic[ModuleT]):
    """A copy of `source` without gradients, in `module`."""

    module: ModuleT

    def __init__(self, source: ModuleT) -> None:
        super().__init__()
        self.module = copy.deepcopy(source).requires_grad_(False)

    @torch.no_grad()
    def copy_from(self, source: ModuleT) -> None:
        """The same as `source` from now on."""
        torch._foreach_copy_(list(self.module.parameters()), list(source.parameters()))
        self._copy_statistics(source)

    @torch.no_grad()
    def follow(self, source: ModuleT, rate: float) -> None:
        """`rate` (tau) of the way to `source`. What was measured is measured for both: it is copied."""
        torch._foreach_lerp_(list(self.module.parameters()), list(source.parameters()), rate)
        self._copy_statistics(source)

    def _copy_statistics(self, source: ModuleT) -> None:
        for ours, theirs in zip(self.module.buffers(), source.buffers(), strict=True):
            ours.copy_(theirs)


def target_policy(policy: PolicyT) -> Target[PolicyT]:
    """Of a policy. Statistics are measured, not learned: what observations look like is the same to both."""
    target = Target(policy)
    target.module.normaliser = policy.normaliser
    return target
