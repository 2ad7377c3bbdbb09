"""An encoder of the user's own, by import path.

`policy.network: module:factory` (or `file.py:factory`) names a function that is called as

    factory(observation: tuple[ArraySpec, ...], **policy.network_kwargs) -> torch.nn.Module

The module has `num_features: int`, and `forward(observation: dict[str, Tensor]) -> Tensor` turns arrays
[N, *shape] of the dtypes and shapes in `observation` into features [N, num_features]. N is the number of
observations, whatever they belong to: rows of a batch, or all rows of all unrolls. With `frame_stack` k > 1
the shapes start with k, oldest frame first. Learner and inference both build it, so that its parameters
must depend on the arguments only. One thread at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.imports import load_attribute
from shoal.policy.array_input import MAX_INPUTS
from shoal.records import ArraySpec

_NUM_TRIED = 2
# A spec comes off a socket: trying it out must not take memory without bound.
_MAX_ELEMENTS = 1 << 24


class OwnEncoder(nn.Module):
    """The user's module, tried once with zeros."""

    def __init__(self, path: str, kwargs: dict[str, object], observation: tuple[ArraySpec, ...]) -> None:
        super().__init__()
        self.names = tuple(array.name for array in observation)
        num_elements = sum(math.prod(array.shape) for array in observation)
        if num_elements > _MAX_ELEMENTS:
            raise UserError(
                f"the observation has {num_elements} elements (limit {_MAX_ELEMENTS}): "
                "wrap the environment so that it shows less"
            )
        factory = load_attribute(path, "policy.network")
        if not callable(factory):
            raise UserError(f"policy.network is {path!r}, which is no function but {type(factory).__name__}")
        try:
            module = factory(observation, **kwargs)
        except Exception as error:
            raise _failed(path, "it raised", error) from error
        if not isinstance(module, nn.Module):
            raise UserError(
                f"policy.network is {path!r}: it returned {type(module).__name__}, not a torch.nn.Module"
            )
        num_features = getattr(module, "num_features", None)
        if not isinstance(num_features, int) or not 1 <= num_features <= MAX_INPUTS:
            raise UserError(
                f"policy.network is {path!r}: its module needs `num_features`, an int from 1 to "
                f"{MAX_INPUTS}, and has {num_features!r}"
            )
        self.module = module
        self.num_features = num_features
        self._try(path, observation)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.module({name: observation[name] for name in self.names})
        return features

    def _try(self, path: str, observation: tuple[ArraySpec, ...]) -> None:
        zeros = {
            array.name: torch.zeros((_NUM_TRIED, *array.shape), dtype=getattr(torch, array.dtype))
            for array in observation
        }
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                features = self.module(zeros)
        except Exception as error:
            raise _failed(path, f"forward failed on {_NUM_TRIED} observations of zeros", error) from error
        self.module.train(training)
        wanted = (_NUM_TRIED, self.num_features)
        if not isinstance(features, Tensor) or tuple(features.shape) != wanted:
            found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(
                f"policy.network is {path!r}: forward gave {found} for {_NUM_TRIED} observations, and "
                f"`num_features` promises {list(wanted)}"
            )


def _failed(path: str, what: str, error: Exception) -> UserError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(f"policy.network is {path!r}: {what}: {reason}")
