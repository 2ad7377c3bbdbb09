"""Weights from bytes (a safetensors file) or arrays into a policy, and what tells two sets of weights apart.

Stateless. Loading writes into the policy: no other thread may be using it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, as_tensor, no_grad

from shoal.errors import UserError
from shoal.policy.network import Policy

_MAX_SHOWN = 3

# Where the weights of twin critics stand in a name; those of a target have `module.` before them.
_CRITICS = re.compile(r"critics\.(?:module\.)?")

Weights = Mapping[str, Tensor | np.ndarray]


def load_policy_bytes(policy: Policy, data: bytes) -> None:
    """All weights or none: names, shapes and dtypes are compared before the first one is written."""
    try:
        found = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{len(data)} bytes of weights are not a safetensors file: {error}") from error
    load_policy_arrays(policy, found)


def load_policy_arrays(policy: Policy, found: Weights) -> None:
    """As `load_policy_bytes`, from what is in memory already.

    Weights that only losses use may be missing, all of them or none: a learner does not publish them.
    """
    wanted = policy.state_dict()
    found = stack_critics(wanted, found)
    if all(map(policy.acts_with, found)):
        wanted = {name: tensor for name, tensor in wanted.items() if policy.acts_with(name)}
    differences = describe_differences(wanted, found)
    if differences:
        raise UserError(
            f"weights of another policy: {differences}. "
            "Use the same `policy` section and environment everywhere"
        )
    with no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(as_tensor(found[name]))


def stack_critics(wanted: Weights, found: Weights) -> Weights:
    """What earlier releases stored of twin critics one by one, `critics.0.` and `critics.1.`, in one array.

    Only where it is wanted so. Names of any prefix, such as those of an optimiser's moments.
    """
    stacked = dict(found)
    for name in wanted.keys() - found.keys():
        pair = [_CRITICS.sub(rf"\g<0>{number}.", name, count=1) for number in range(2)]
        if all(part in found and part != name for part in pair):
            stacked[name] = np.stack([np.asarray(stacked.pop(part)) for part in pair])
    return stacked


def describe_differences(wanted: Weights, found: Weights) -> str:
    """The first few names, shapes and dtypes that differ; empty if none does."""
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{name} is not a weight of this policy" for name in sorted(found) if name not in wanted]
    for name in wanted.keys() & found.keys():
        ours, theirs = _describe(wanted[name]), _describe(found[name])
        if ours != theirs:
            lines.append(f"{name} is {theirs} instead of {ours}")
    more = len(lines) - _MAX_SHOWN
    return "; ".join(sorted(lines)[:_MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _describe(tensor: Tensor | np.ndarray) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
