"""The optimisers against torch's classes, step by step, and what checkpoints hold of them."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from services.learner.flat import FlatParameters
from services.learner.optimiser import build_optimiser
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.config.network import PolicySection
from shoal.errors import CheckpointError
from shoal.policy.network import Policy, build_policy
from shoal.records import ArraySpec, DiscreteAction, EnvSpec

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
RATES = {"head": 3e-2, "body": 1e-2}

# Settings, and the optimiser of torch that they stand for.
KINDS = {
    "adam": ({"optimiser": "adam"}, torch.optim.Adam, {}),
    "adam, constants": (
        {"optimiser": "adam", "optimiser_epsilon": 1e-3, "adam_beta_1": 0.5, "adam_beta_2": 0.9},
        torch.optim.Adam,
        {"eps": 1e-3, "betas": (0.5, 0.9)},
    ),
    "adamw": ({"optimiser": "adamw", "weight_decay": 0.3}, torch.optim.AdamW, {"weight_decay": 0.3}),
    "rmsprop": (
        {"optimiser": "rmsprop", "optimiser_epsilon": 1e-5, "rms_decay": 0.95},
        torch.optim.RMSprop,
        {"eps": 1e-5, "alpha": 0.95},
    ),
    "rmsprop, momentum": (
        {"optimiser": "rmsprop", "rms_momentum": 0.8},
        torch.optim.RMSprop,
        {"momentum": 0.8},
    ),
}


class Grouped(Algorithm[Policy]):
    """Two groups of parameters, with learning rates of their own. Weights of the head do not decay."""

    def __init__(self, **settings: object) -> None:
        torch.manual_seed(1)
        policy = build_policy(PolicySection(hidden_sizes=(5,)), SPEC)
        super().__init__(ImpalaConfig.model_validate({"name": "impala", **settings}), policy)

    def group_of(self, parameter: str) -> str:
        return "head" if "head" in parameter else "body"

    def learning_rate(self, group: str) -> float:
        return RATES[group]

    def decays(self, group: str) -> bool:
        return group != "head"

    def loss(self, batch: Batch) -> LossOutput:
        loss = torch.stack([p.square().sum() for p in self.policy.parameters()]).sum()
        return LossOutput(loss, {}, torch.ones(()))


def batch() -> Batch:
    none = torch.zeros(2, 1, dtype=torch.bool)
    return Batch(
        observation={"observation": torch.zeros(2, 1, 3)},
        action_SB=torch.zeros(2, 1, dtype=torch.int64),
        reward_SB=torch.zeros(2, 1),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=none,
        weight_B=torch.ones(1),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_torchs(kind: str) -> None:
    """Groups have their own rates, and one of them makes every second step only."""
    settings, their_class, theirs = KINDS[kind]
    algorithm = Grouped(**settings)
    reference = {name: p.detach().clone().requires_grad_() for name, p in algorithm.named_parameters()}
    flat = FlatParameters(algorithm, algorithm.group_of)
    optimiser = build_optimiser(algorithm, flat)
    others = {
        group: their_class(
            [p for name, p in reference.items() if algorithm.group_of(name) == group],
            lr=RATES[group],
            **(theirs | ({"weight_decay": 0.0} if group == "head" and "weight_decay" in theirs else {})),
        )
        for group in flat.groups
    }
    generator = torch.Generator().manual_seed(2)
    for step in range(40):
        gradients: dict[str, Tensor] = {}
        for name, view in flat.views(flat.grad).items():
            gradients[name] = torch.randn(view.shape, generator=generator) * (1 + step)
            view.copy_(gradients[name])
            reference[name].grad = gradients[name]
        groups = [*flat.groups] if step % 2 else ["body"]
        optimiser.step(groups)
        for group in groups:
            others[group].step()
    ours = flat.views(flat.data)
    for name, parameter in reference.items():
        torch.testing.assert_close(ours[name], parameter.detach(), rtol=1e-6, atol=1e-7)
    assert optimiser.state()[f"{optimiser.family}/num_steps/head"] == 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_is_on_the_learning_rates(kind: str) -> None:
    settings, *_ = KINDS[kind]
    moved = []
    for factor in (1.0, 0.5):
        algorithm = Grouped(**settings)
        flat = FlatParameters(algorithm, algorithm.group_of)
        before = flat.data.clone()
        flat.grad.copy_(torch.linspace(-1, 1, flat.grad.numel()))
        build_optimiser(algorithm, flat).step(flat.groups, factor)
        moved.append(flat.data - before)
    torch.testing.assert_close(moved[0] * 0.5, moved[1], rtol=1e-4, atol=1e-6)
    assert moved[0].abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_as_if_it_had_not_been_stopped(kind: str) -> None:
    settings, *_ = KINDS[kind]
    whole, first, second = (Trainer(Grouped(**settings), 10.0) for _ in range(3))
    for _ in range(6):
        whole.step(batch())
    for _ in range(3):
        first.step(batch())
    second.load_state(first.state())
    for _ in range(3):
        second.step(batch())
    for name, array in whole.state().items():
        np.testing.assert_array_equal(second.state()[name], array)


def test_names_of_adam_in_a_checkpoint_stay() -> None:
    """Checkpoints of earlier releases have them."""
    algorithm = Grouped()
    state = Trainer(algorithm, 10.0).state()
    moments = {f"adam/{kind}/{name}" for kind in ("exp_avg", "exp_avg_sq") for name in names_of(algorithm)}
    found = {name for name in state if name.startswith("adam/")}
    assert found == moments | {"adam/num_steps/head", "adam/num_steps/body"}


def names_of(algorithm: nn.Module) -> list[str]:
    return [name for name, _ in algorithm.named_parameters()]


def test_adam_and_adamw_go_on_from_each_other() -> None:
    adam, adamw = Trainer(Grouped(), 10.0), Trainer(Grouped(optimiser="adamw"), 10.0)
    adam.step(batch())
    adamw.load_state(adam.state())
    name = next(name for name in adam.state() if name.startswith("adam/exp_avg/"))
    np.testing.assert_array_equal(adamw.state()[name], adam.state()[name])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"optimiser": "rmsprop"}),
        ({"optimiser": "rmsprop"}, {}),
        ({"optimiser": "rmsprop"}, {"optimiser": "rmsprop", "rms_momentum": 0.9}),
    ],
)
def test_another_optimiser_goes_on_with_new_moments(
    before: dict[str, object], after: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Trainer(Grouped(**before), 10.0), Trainer(Grouped(**after), 10.0)
    old.step(batch())
    new.step(batch())
    with caplog.at_level(logging.WARNING):
        new.load_state(old.state())
    assert "they begin at zero" in caplog.text
    for name, array in new.weights().items():
        np.testing.assert_array_equal(array, old.weights()[name])
    moments = {name: array for name, array in new.state().items() if name.startswith(("adam/", "rmsprop/"))}
    assert moments
    assert all(not array.any() for array in moments.values())


def test_moments_that_are_not_all_there_are_refused() -> None:
    trainer = Trainer(Grouped(), 10.0)
    state = trainer.state()
    del state["adam/num_steps/head"]
    with pytest.raises(CheckpointError, match="adam/num_steps/head is missing"):
        trainer.load_state(state)


def test_training_does_without_dynamo() -> None:
    """Importing it takes more than a second, which the first trained batch would wait for."""
    code = (
        "import sys; sys.path.insert(0, '.'); from tests.unit.learner.test_optimiser import *\n"
        "for optimiser in ('adam', 'adamw', 'rmsprop'):\n"
        "    Trainer(Grouped(optimiser=optimiser), 10.0).step(batch())\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
