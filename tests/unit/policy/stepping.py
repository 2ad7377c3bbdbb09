"""Specs, observations and episode starts at random, and a policy stepped through them row by row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.policy.network import Acted, Choice, Policy
from shoal.records import ACTION_MASK, ActionSpec, ArraySpec, BoxAction, EnvSpec

CPU = torch.device("cpu")
VECTOR = ArraySpec("observation", "float32", (4,))
MIXED = (
    ArraySpec("observation.frame", "uint8", (2, 3)),
    ArraySpec("observation.kind", "int64", (), num_categories=5),
    ArraySpec("observation.level", "float64", ()),
)
PIXELS = ArraySpec("observation.pixels", "uint8", (36, 40))
BOX = BoxAction((2, 2), (-1.0, -2.0, 0.0, -3.0), (1.0, 2.0, 5.0, -1.0))
UNBOUNDED = BoxAction((2, 2), (-1.0,) * 4, (math.inf,) * 4)


def spec_of(action: ActionSpec, *observation: ArraySpec) -> EnvSpec:
    return EnvSpec("Test-v0", observation or (VECTOR,), action)


def mask_of(num: int) -> ArraySpec:
    return ArraySpec(ACTION_MASK, "int8", (num,))


def observe(spec: EnvSpec, *leading: int) -> dict[str, Tensor]:
    """Random arrays [*leading, ...] of every dtype; a mask allows something in most rows, not in all."""
    return {array.name: _random(array, leading) for array in spec.observation}


def _random(array: ArraySpec, leading: tuple[int, ...]) -> Tensor:
    shape, dtype = (*leading, *array.shape), getattr(torch, array.dtype)
    if array.name == ACTION_MASK:
        return torch.randint(0, 2, shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 256 if dtype == torch.uint8 else 5, shape, dtype=dtype)


def episode_starts(num_rows: int, num_envs: int) -> Tensor:
    """Env 0 starts with row 0 and never again, env 1 runs on from before, env 2 starts twice in a row."""
    first = torch.rand(num_rows, num_envs) < 0.2
    first[:, :2] = False
    first[0, 0] = True
    first[3:5, 2] = True
    return first


def random_state(policy: Policy, num_envs: int) -> dict[str, Tensor]:
    """As if the environments had been running for a while."""
    return {array.name: _random(array, (num_envs,)) for array in policy.state}


def step_through(
    policy: Policy, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor], choice: Choice
) -> list[Acted]:
    """Row by row, through one buffer that is overwritten for each row, as inference does."""
    buffer = {name: torch.empty_like(tensor[0]) for name, tensor in observation.items()}
    acted = []
    with torch.inference_mode():
        for row, first in enumerate(first_SB.unbind()):
            for name, tensor in observation.items():
                buffer[name].copy_(tensor[row])
            acted.append(policy.act(buffer, first, state, choice))
            state = acted[-1].state
    return acted


def outputs_of(acted: list[Acted], name: str) -> Tensor:
    return torch.stack([step.outputs[name] for step in acted])
