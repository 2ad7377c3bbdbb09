"""Every algorithm goes on from a checkpoint as if nothing had happened: the same state to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from services.learner.checkpoint import CheckpointStore
from services.learner.progress import Progress
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import Algorithm, build_algorithm
from shoal.algorithms.batch import Batch
from shoal.config import Config
from shoal.config.algorithms import AnyAlgorithm
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


def config_of(name: str) -> Config:
    policy: dict[str, Any] = {"hidden_sizes": [8]}
    if name == "r2d2":
        policy |= {"recurrent": "lstm", "recurrent_size": 4}
    return build_config({"algorithm": {"name": name} | MORE.get(name, {}), "policy": policy})


def spec_of(name: str) -> EnvSpec:
    action = BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)) if name in ("sac", "td3") else DiscreteAction(3)
    return EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), action)


def build(name: str, seed: int) -> Trainer:
    torch.manual_seed(seed)
    config = config_of(name)
    algorithm = build_algorithm(config.algorithm, build_policy(config.policy, spec_of(name)))
    return Trainer(algorithm, config.algorithm.max_grad_norm)


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


def train(name: str, trainer: Trainer, seeds: range) -> None:
    for seed in seeds:
        trainer.step(batch_of(trainer._algorithm, spec_of(name), seed))


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert array.dtype == other[key].dtype, key
        assert array.tobytes() == other[key].tobytes(), f"{key} differs"


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_the_same_to_the_bit_and_so_is_what_follows(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", 3)
    store.prepare()
    trainer = build(name, seed=1)
    train(name, trainer, range(5))
    saved = trainer.state()
    store.save(saved, Progress(learner_steps=5).to_json(), spec_of(name), "")
    train(name, trainer, range(5, 8))
    expected = trainer.state()

    # Another life: other first weights, and another state of the generator.
    restored = build(name, seed=2)
    checkpoint = store.newest()
    assert checkpoint is not None
    restored.load_state(checkpoint.tensors)
    assert_same(restored.state(), saved)
    train(name, restored, range(5, 8))
    assert_same(restored.state(), expected)


def test_control_a_state_that_is_not_loaded_is_seen(tmp_path: Path) -> None:
    trainer, other = build("impala", seed=1), build("impala", seed=2)
    train("impala", trainer, range(3))
    train("impala", other, range(3))
    with pytest.raises(AssertionError, match="differs"):
        assert_same(trainer.state(), other.state())
