"""Checkpoints that an earlier release has written still load, and training goes on as it would have there.

`old_checkpoints/*.safetensors` hold a trainer's state after three steps, with each critic by itself, and what
that release made of it: `expected/q`, the values of `made_up_batch`, and `after/...`, the weights after one
more step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.profiles import AnyAlgorithm
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.td3.profile import Td3Config
from shoal.config.network import PolicySection
from shoal.errors import CheckpointError
from shoal.policy.network import build_policy
from shoal.policy.twin_q import TwinQPolicy
from shoal.policy.weights import load_policy_arrays, stack_critics
from shoal.records import ArraySpec, BoxAction, EnvSpec

STORED = Path(__file__).with_name("old_checkpoints")
SPEC = EnvSpec(
    "Test-v0",
    (ArraySpec("observation", "float32", (3,)),),
    BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)),
)
ALGORITHMS: dict[str, AnyAlgorithm] = {
    "sac": SacConfig(learning_rate=0.01),
    "td3": Td3Config(learning_rate=0.01),
}


def made_up_batch() -> Batch:
    generator = torch.Generator().manual_seed(2)
    none = torch.zeros(2, 5, dtype=torch.bool)
    return Batch(
        observation={"observation": torch.randn(2, 5, 3, generator=generator)},
        action_SB=torch.rand(2, 5, 2, generator=generator) * 2 - 1,
        reward_SB=torch.randn(2, 5, generator=generator),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=none,
        weight_B=torch.ones(5),
        discount_SB=torch.full((2, 5), 0.9),
    )


def fresh(name: str) -> tuple[Trainer, TwinQPolicy]:
    config = ALGORITHMS[name]
    section = PolicySection.model_validate(
        {"kind": config.trains, "hidden_sizes": (4, 4), "activation": "relu"}
    )
    policy = build_policy(section, SPEC)
    assert isinstance(policy, TwinQPolicy)
    return Trainer(build_algorithm(config, policy), 1e9), policy


def stored(name: str) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    arrays = load_file(STORED / f"{name}.safetensors")
    after = {key.removeprefix("after/"): arrays.pop(key) for key in [*arrays] if key.startswith("after/")}
    return {key: array for key, array in arrays.items() if key != "expected/q"}, arrays["expected/q"], after


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_goes_on(name: str) -> None:
    state, q, after = stored(name)
    trainer, policy = fresh(name)
    trainer.load_state(state)
    batch = made_up_batch()
    with torch.no_grad():
        found = policy.q_values(batch.observation, batch.first_SB, {}, batch.action_SB)
    np.testing.assert_allclose(found.numpy(), q, rtol=1e-5, atol=1e-6)
    trainer.step(batch)
    weights = {key: tensor.numpy() for key, tensor in policy.state_dict().items()}
    expected = stack_critics(weights, after)
    assert weights.keys() == expected.keys()
    for key, array in weights.items():
        np.testing.assert_allclose(array, expected[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_weights_can_be_played(name: str) -> None:
    state, q, _ = stored(name)
    _, policy = fresh(name)
    prefix = "policy/"
    load_policy_arrays(
        policy, {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}
    )
    batch = made_up_batch()
    with torch.no_grad():
        found = policy.q_values(batch.observation, batch.first_SB, {}, batch.action_SB)
    np.testing.assert_allclose(found.numpy(), q, rtol=1e-5, atol=1e-6)


def test_half_a_pair_is_not_enough() -> None:
    state, *_ = stored("sac")
    trainer, _ = fresh("sac")
    before = trainer.state()
    del state["policy/critics.1.value_head.bias"]
    with pytest.raises(CheckpointError, match="critics"):
        trainer.load_state(state)
    for key, array in trainer.state().items():
        np.testing.assert_array_equal(array, before[key])
