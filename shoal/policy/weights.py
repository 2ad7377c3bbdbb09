"""Weights of a policy as bytes (safetensors) and back, for publishing, checkpoints and hot swaps.

Stateless. `load_policy_bytes` writes into the policy: no other thread may be using it.
"""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor, no_grad

from shoal.errors import UserError
from shoal.policy.network import Policy

_MAX_SHOWN = 3


def policy_to_bytes(policy: Policy) -> bytes:
    """All weights as one safetensors file."""
    # NumPy's writer: torch's looks for shared storage first, which takes longer than writing a small network.
    return save({name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()})


def load_policy_bytes(policy: Policy, data: bytes) -> None:
    """All weights or none: names, shapes and dtypes are compared before the first one is written."""
    try:
        found = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{len(data)} bytes of weights are not a safetensors file: {error}") from error
    wanted = policy.state_dict()
    differences = _differences(wanted, found)
    if differences:
        more = len(differences) - _MAX_SHOWN
        text = "; ".join(differences[:_MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise UserError(
            f"weights of another policy: {text}. Use the same `policy` section and environment everywhere"
        )
    with no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(found[name])


def _differences(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{name} is not a weight of this policy" for name in sorted(found) if name not in wanted]
    for name in wanted.keys() & found.keys():
        ours, theirs = wanted[name], found[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            lines.append(f"{name} is {_describe(theirs)} instead of {_describe(ours)}")
    return sorted(lines)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
