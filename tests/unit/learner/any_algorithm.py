"""Each algorithm with a small policy, and batches at random for it: for tests of what all have in common."""

from __future__ import annotations

from typing import Any, get_args

import torch

from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import Algorithm, build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.profiles import AnyAlgorithm
from shoal.config import Config
from shoal.config.load import build_config
from shoal.policy.network import build_policy
from shoal.records import ArraySpec, BoxAction, DiscreteAction, EnvSpec

NUM_ENVS, ROWS = 6, 9

SECTIONS = get_args(get_args(AnyAlgorithm)[0])
NAMES = [section.model_fields["name"].default for section in SECTIONS]


# Settings that make an algorithm keep more than it does by default.
MORE: dict[str, dict[str, Any]] = {
    "apex": {"target_every": 2},
    "r2d2": {"target_every": 2, "burn_in": 2},
    "td3": {"policy_delay": 2},
}


def config_of(name: str, normalised: bool = False) -> Config:
    """`normalised`: with all the statistics that there can be."""
    policy: dict[str, Any] = {"hidden_sizes": [8], "normalise_observations": normalised}
    if name == "r2d2":
        policy |= {"recurrent": "lstm", "recurrent_size": 4}
    algorithm = {"name": name, "normalise_returns": normalised} | MORE.get(name, {})
    return build_config({"algorithm": algorithm, "policy": policy})


def spec_of(name: str) -> EnvSpec:
    action = BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)) if name in ("sac", "td3") else DiscreteAction(3)
    return EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), action)


def build(name: str, seed: int, *, normalised: bool = False, compile_loss: bool = False) -> Trainer:
    torch.manual_seed(seed)
    config = config_of(name, normalised)
    algorithm = build_algorithm(config.algorithm, build_policy(config.policy, spec_of(name)))
    return Trainer(algorithm, config.algorithm.max_grad_norm, compile_loss=compile_loss)


def batch_of(algorithm: Algorithm[Any], spec: EnvSpec, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, NUM_ENVS)

    def noise(rows: tuple[int, ...], array: ArraySpec) -> torch.Tensor:
        return torch.randn(*rows, *array.shape, generator=generator)

    terminated = torch.rand(shape, generator=generator) < 0.1
    first = torch.zeros(shape, dtype=torch.bool)
    first[1:] = terminated[:-1]
    if isinstance(spec.action, DiscreteAction):
        action = torch.randint(0, spec.action.n, shape, generator=generator)
    else:
        action = noise(shape, spec.action.array_spec()).clamp(-1.0, 1.0)
    return Batch(
        observation={array.name: noise(shape, array) for array in spec.observation},
        action_SB=action,
        reward_SB=torch.randn(shape, generator=generator),
        terminated_SB=terminated,
        truncated_SB=torch.zeros(shape, dtype=torch.bool),
        first_SB=first,
        weight_B=torch.rand(NUM_ENVS, generator=generator),
        behaviour={array.name: -noise(shape, array).abs() for array in algorithm.behaviour},
        state={array.name: noise((NUM_ENVS,), array) for array in algorithm.policy.state},
    )
